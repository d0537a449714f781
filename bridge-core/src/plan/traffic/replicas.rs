//! Communication after the micro-batches: gradients and parameters over replicas, gradients of
//! shared parameters, figures.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::ops::Range;

use bridge_dist::comm::Operation;
use bridge_dist::mesh::GroupKind;

use super::{FLOAT32, FLOAT64, Tally, TrafficGroup, Way};
use crate::config::{Fp8Recipe, RerunMode, train_windows};
use crate::model::{Declaration, ParameterRole, ROUTER_LOSSES, ReplicaGroup, TrafficKind};
use crate::optim::{
    BucketParameter, BucketSize, GATHERED, Sharding, WholeLayout, bucket_sizes, code_len, padded_part, padded_part_of,
};
use crate::plan::recompute::Region;
use crate::plan::segments::chunk_regions;
use crate::plan::setup::{Chunk, Setup};

impl Setup<'_> {
    /// The group over which gradients of a kind are reduced. If optimizer state has several
    /// instances, also the group of ranks with the same shard in other instances.
    fn replica_groups(&self, replicas: ReplicaGroup) -> (GroupKind, Option<GroupKind>) {
        match (replicas, self.instances() > 1) {
            (ReplicaGroup::Dense, false) => (GroupKind::DataContext, None),
            (ReplicaGroup::Dense, true) => {
                (GroupKind::DistributedOptimizer, Some(GroupKind::DistributedOptimizerReplicas))
            }
            (ReplicaGroup::Expert, false) => (GroupKind::ExpertData, None),
            (ReplicaGroup::Expert, true) => {
                (GroupKind::ExpertDistributedOptimizer, Some(GroupKind::ExpertDistributedOptimizerReplicas))
            }
        }
    }
}

/// The buckets in which gradients and parameters of a chunk are communicated.
fn buckets_of_chunk(setup: &Setup<'_>, chunk: &Chunk) -> Vec<BucketSize> {
    let replicas = setup.replicas();
    let parameters = chunk.declarations.parameters().iter();
    let is_full = setup.sharding() == Sharding::Full;
    let travels = |p: &&Declaration| (p.trainable || is_full) && !p.is_float32();
    let travelling = parameters.filter(|p| travels(p) && replicas.count_for(p.placement.replicas) > 1);
    let parameters = travelling.map(|parameter| BucketParameter {
        name: String::new(),
        num_elements: parameter.num_elements(),
        replicas: parameter.placement.replicas,
        first_segment: parameter.segments[0],
        is_trained: parameter.trainable,
        is_cast: parameter.has_cast && setup.distribution.gathers_codes(),
    });
    bucket_sizes(&parameters.collect::<Vec<_>>(), setup.distribution.layout(setup.shards()))
}

/// Number of times that each bucket of a chunk is gathered for a micro-batch if parameters are
/// whole only while a region runs: each bucket then has parameters of one segment.
fn gathers(setup: &Setup<'_>, chunk: &Chunk, buckets: &[BucketSize]) -> Vec<u64> {
    let mut uses: BTreeMap<(usize, ReplicaGroup), BTreeSet<usize>> = BTreeMap::new();
    for parameter in chunk.declarations.parameters() {
        uses.entry((parameter.segments[0], parameter.placement.replicas)).or_default().extend(&parameter.segments);
    }
    let uses = |segments: &Range<usize>, bucket: &BucketSize| {
        let used = uses.get(&(bucket.first_segment, bucket.replicas));
        used.is_some_and(|used| used.range(segments.clone()).next().is_some())
    };
    let regions = chunk_regions(setup, chunk);
    let (mut is_whole, mut gathered) = (vec![false; buckets.len()], vec![0; buckets.len()]);
    let mut visit = |segments: &Range<usize>, needs: bool, releases: bool| {
        for (index, _) in buckets.iter().enumerate().filter(|(_, bucket)| uses(segments, bucket)) {
            gathered[index] += u64::from(needs && !is_whole[index]);
            is_whole[index] = !releases;
        }
    };
    for region in &regions {
        visit(&region.segments, true, region.recomputed);
    }
    // Backward ends where nothing below is trained.
    let trained = chunk.declarations.parameters().iter().filter(|parameter| parameter.trainable);
    let first_trained = trained.map(|parameter| parameter.segments[0]).min().unwrap_or(usize::MAX);
    let has_backward = |region: &&Region| !chunk.content.embedding || region.segments.end > first_trained;
    for region in regions.iter().rev().filter(has_backward) {
        visit(&region.segments, region.recomputed, true);
    }
    gathered
}

/// Bytes of the communication buffers of the largest bucket of a stage: its gradients, and twice a
/// rank's part of them as it is added up.
pub(in crate::plan) fn largest_bucket(setup: &Setup<'_>, stage: usize) -> u64 {
    let bytes = |bucket: BucketSize| {
        let ranks = setup.group_size(setup.replica_groups(bucket.replicas).0) as u64;
        (ranks + 2) * bucket.part_len as u64 * setup.bytes.reduction
    };
    let chunks = setup.stages[stage].iter();
    let buckets = chunks.flat_map(|chunk| buckets_of_chunk(setup, chunk)).filter(|bucket| bucket.is_trained);
    buckets.map(bytes).max().unwrap_or(0)
}

impl Tally<'_, '_> {
    /// Gradients over replicas, and parameters back where ranks update shards of them.
    pub(super) fn replicas(&mut self, stage: usize, microbatches: u64) {
        let setup = self.setup;
        for chunk in &setup.stages[stage] {
            let buckets = buckets_of_chunk(setup, chunk);
            let reductions = if setup.sharding().divides_gradients() { microbatches } else { 1 };
            let gathers = match setup.sharding() {
                Sharding::None => vec![0; buckets.len()],
                Sharding::Optimizer | Sharding::Gradients => vec![1; buckets.len()],
                // Sharded parameters are released after each use in a micro-batch.
                Sharding::Full => {
                    let of_microbatch = gathers(setup, chunk, &buckets).into_iter();
                    of_microbatch.map(|times| times * microbatches).collect()
                }
            };
            for (bucket, gathers) in buckets.iter().zip(gathers) {
                self.bucket(bucket, if bucket.is_trained { reductions } else { 0 }, gathers);
            }
        }
        self.magnitudes(stage);
        self.whole(stage);
    }

    /// Parameters and gradients to the ranks that update them whole, and new values back.
    fn whole(&mut self, stage: usize) {
        for replicas in [ReplicaGroup::Dense, ReplicaGroup::Expert] {
            let Some((holders, layouts)) = self.setup.whole(stage, replicas) else { continue };
            let back = |layout: &WholeLayout| (0..holders.len()).map(|rank| layout.part_len(rank)).sum::<usize>();
            let elements: usize =
                layouts.iter().map(|layout| GATHERED * layout.all_given(&holders) + back(layout)).sum();
            let way = Way(TrafficKind::Parameters, TrafficGroup::Whole(replicas), Operation::AllToAll);
            // Owners have unequal numbers; this is the mean.
            self.add_uneven(way, 2, (elements as u64 * FLOAT32).div_ceil(holders.len() as u64));
        }
    }

    /// Largest magnitudes of weights that are gathered as codes with scales of their own: once a
    /// step, when they have changed.
    fn magnitudes(&mut self, stage: usize) {
        let setup = self.setup;
        if setup.config.model.fp8_recipe != Some(Fp8Recipe::Tensorwise) {
            return;
        }
        for kind in [ReplicaGroup::Dense, ReplicaGroup::Expert] {
            let buckets = setup.stages[stage].iter().flat_map(|chunk| buckets_of_chunk(setup, chunk));
            let cast = buckets.filter(|bucket| bucket.is_cast && bucket.replicas == kind);
            let count: usize = cast.map(|bucket| bucket.num_parameters).sum();
            if count > 0 {
                let way = Way::on(TrafficKind::Parameters, setup.replica_groups(kind).0, Operation::AllReduce);
                self.add(way, 1, count as u64 * FLOAT32);
            }
        }
    }

    fn bucket(&mut self, bucket: &BucketSize, reductions: u64, gathers: u64) {
        let setup = self.setup;
        let (group, copies) = setup.replica_groups(bucket.replicas);
        let part = bucket.part_len as u64;
        let gradients = setup.group_size(group) as u64 * part * setup.bytes.reduction;
        let reduction = if setup.sharding().divides_state() { Operation::ReduceScatter } else { Operation::AllReduce };
        self.add(Way::on(TrafficKind::Gradients, group, reduction), reductions, gradients);
        if let Some(copies) = copies.filter(|_| bucket.is_trained) {
            let way = Way::on(TrafficKind::Gradients, copies, Operation::AllReduce);
            self.add(way, 1, part * setup.bytes.reduction);
        }
        let way = Way::on(TrafficKind::Parameters, group, Operation::AllGather);
        let bytes = if bucket.is_cast { code_len(bucket.part_len) as u64 } else { part * setup.bytes.parameter };
        self.add(way, gathers, bytes);
    }

    /// Gradients of parameters of which several ranks of a model replica hold copies.
    pub(super) fn shared_gradients(&mut self, stage: usize) {
        let setup = self.setup;
        let shards = |kind| if setup.sharding().divides_state() { setup.shards().count_for(kind) } else { 1 };
        let trained = |stage| setup.parameters(stage).filter(|p| p.trainable);
        for (kind, group) in [(ReplicaGroup::Dense, GroupKind::Tensor), (ReplicaGroup::Expert, GroupKind::ExpertTensor)]
        {
            let shared = trained(stage).filter(|p| p.placement.partial_gradient && p.placement.replicas == kind);
            let part = padded_part(shared.map(Declaration::num_elements), shards(kind)) as u64;
            if part > 0 {
                let way = Way::on(TrafficKind::SharedGradients, group, Operation::AllReduce);
                self.add(way, 1, part * FLOAT32);
            }
        }
        let shards = shards(ReplicaGroup::Dense);
        let rows = trained(stage).filter(|p| p.placement.shared.is_some());
        let rows = rows.map(|p| (p.num_elements(), p.shared_elements()));
        let part = padded_part_of(rows, shards) as u64;
        if part > 0 {
            let way = Way(TrafficKind::SharedGradients, TrafficGroup::RowCopies, Operation::AllReduce);
            self.add(way, 1, part * FLOAT32);
        }
        // The first and the last stage hold the tied embedding, and reduce its gradient together.
        let last = setup.layout.pipeline - 1;
        let other_end = if stage == 0 { last } else { 0 };
        let names: HashSet<&str> = setup.parameters(other_end).map(|p| p.name.as_str()).collect();
        let tied = trained(stage).filter(|p| names.contains(p.name.as_str()));
        let part = padded_part(tied.map(Declaration::num_elements), shards) as u64;
        if part > 0 && last > 0 && (stage == 0 || stage == last) {
            let way = Way::on(TrafficKind::TiedEmbedding, GroupKind::Embedding, Operation::AllReduce);
            self.add(way, 1, part * FLOAT32);
        }
    }

    /// Figures that ranks add up or agree on.
    pub(super) fn scalars(&mut self, stage: usize, microbatches: u64) {
        let setup = self.setup;
        let on = |group, operation| Way::on(TrafficKind::Scalars, group, operation);
        let windows = train_windows(setup.config);
        let windows = windows.count(microbatches as usize) as u64;
        // Tokens of the micro-batches, the loss with its divisor.
        let replicas = on(GroupKind::DataContext, Operation::AllReduce);
        self.add_uneven(replicas, windows + 1, (microbatches + 2) * FLOAT64);
        self.add_uneven(on(GroupKind::Context, Operation::AllReduce), windows, microbatches * FLOAT64);
        let is_root = stage + 1 == setup.layout.pipeline;
        let told = if is_root { 2 * FLOAT64 } else { 0 };
        self.add_uneven(on(GroupKind::Pipeline, Operation::Broadcast), 1, told);
        if let Some(experts) = setup.model.routed_experts() {
            // The losses of the routers, with their divisors: of all layers, and of each with the
            // tokens of its experts.
            let losses = 2 * ROUTER_LOSSES.len() as u64;
            let layers = setup.model.layers_with_experts().len() as u64;
            for figures in [losses, layers * (losses + experts as u64)] {
                self.add(replicas, 1, figures * FLOAT64);
                self.add(on(GroupKind::Pipeline, Operation::AllReduce), 1, figures * FLOAT64);
            }
        }
        let predictions = setup.model.mtp_num_layers.unwrap_or(0) as u64;
        if predictions > 0 {
            // The losses of multi-token prediction, with their divisors.
            self.add_uneven(replicas, 1, 2 * predictions * FLOAT64);
            self.add_uneven(on(GroupKind::Pipeline, Operation::Broadcast), 1, told * predictions);
        }
        let world = |operation| Way(TrafficKind::Scalars, TrafficGroup::World, operation);
        // Whether all ranks could read their data.
        self.add(world(Operation::AllGather), windows, 1);
        // Whether a rank found fault with its losses; the norm and, where they are counted, the
        // zeros; where results are validated, the vote on repeating the step.
        let votes = u64::from(setup.config.rerun_state_machine.rerun_mode == RerunMode::ValidateResults);
        let config = setup.config;
        let zeros = u64::from(config.optimizer.log_num_zeros_in_grad || config.logger.log_num_zeros_in_grad);
        self.add(world(Operation::AllReduce), 2 + zeros + votes, FLOAT64);
        // The largest magnitudes of states that are kept as multiples of a scale.
        let scales = setup.bytes.scales / 4;
        if scales > 0 {
            self.add(world(Operation::AllReduce), 1, scales * super::super::parameters::num_trained(setup) * FLOAT32);
        }
        self.cast_maxima(stage);
        // Signals, cancellation and the clock.
        self.add(world(Operation::AllReduce), 1, 3 * FLOAT64);
    }

    /// The largest magnitudes of 8-bit operands, three of each layer whose scales come from earlier
    /// steps.
    fn cast_maxima(&mut self, stage: usize) {
        let of_layers =
            self.setup.parameters(stage).filter(|p| p.role == ParameterRole::CastState && p.shape.len() == 1);
        let (dense, of_experts): (Vec<_>, Vec<_>) =
            of_layers.partition(|p| p.placement.replicas == ReplicaGroup::Dense);
        for (layers, groups) in [
            (dense.len(), [GroupKind::Tensor, GroupKind::DataContext]),
            (of_experts.len(), [GroupKind::ExpertTensor, GroupKind::ExpertData]),
        ] {
            for group in groups.into_iter().filter(|_| layers > 0) {
                self.add(Way::on(TrafficKind::Scalars, group, Operation::AllReduce), 1, 3 * layers as u64 * FLOAT64);
            }
        }
    }
}
