//! Peak memory of a rank of a stage in a step, in bytes, by purpose.
//!
//! Backward goes through the segments from the last to the first: activations go, gradients come. A
//! step of one micro-batch has no sums of gradients when its backward begins, so the peak is
//! anywhere between all activations and all gradients. Every segment is evaluated.

use std::collections::{BTreeMap, HashSet};

use bridge_dist::schedule::ScheduleKind;
use serde::Serialize;

use super::offload::kept;
use super::recompute::Region;
use super::segments::{ChunkActivations, activations as of_chunk, chunk_regions};
use super::setup::{Chunk, Setup};
use super::traffic::largest_bucket;
use crate::model::{Declaration, ReplicaGroup};
use crate::optim::rules::{self, Rule, Unit};
use crate::optim::{self, OffloadSettings, Sharding, WholeLayout, owned_range};

/// Memory of a rank at the moment when it holds most, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Memory {
    /// Parameters in the dtype they are used in.
    pub parameters: u64,
    /// Gradients summed over micro-batches. On a GPU a 16-bit gradient without a second summand
    /// takes fewer bytes than the sum that is counted.
    pub gradients: u64,
    /// Moments and master values that are on the device.
    pub optimizer: u64,
    /// Activations kept from forward to backward, of all micro-batches in flight.
    pub activations: u64,
    /// Activations that recompute has brought back.
    pub recompute: u64,
    /// Activations that are back from the host.
    pub returned: u64,
    /// Gradients that are alive at once in one backward: of activations, and of parameters before
    /// they are added to the sums.
    pub backward: u64,
    /// Whole parameters gathered for one region, and for the next if `ddp.overlap_param_gather` is
    /// on, where parameters are sharded.
    pub gathered: u64,
    /// Logits of the loss.
    pub cross_entropy: u64,
    /// Scores of attention; on the CPU, on `train.num_threads` threads (one if that is not set).
    pub attention: u64,
    /// Gradients in flight between replicas: a bucket and its received part.
    pub reduction: u64,
    /// All of the above.
    pub total: u64,
    /// Moments and master weights in host memory, if the device is a GPU: states that
    /// `optimizer.optimizer_cpu_offload` moves, and 8-bit states and remainders, which are always
    /// in host memory. Not part of `total`.
    pub host_optimizer: u64,
}

impl Memory {
    /// The parts of its total with their names, the largest first.
    pub fn parts(&self) -> Vec<(&'static str, u64)> {
        let mut parts = vec![
            ("parameters", self.parameters),
            ("gradients", self.gradients),
            ("optimizer state", self.optimizer),
            ("activations", self.activations),
            ("recomputed activations", self.recompute),
            ("activations back from the host", self.returned),
            ("gradients in hand", self.backward),
            ("gathered parameters", self.gathered),
            ("logits", self.cross_entropy),
            ("attention scores", self.attention),
            ("gradients in flight", self.reduction),
        ];
        parts.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
        parts
    }

    /// Fills in the sum.
    fn summed(mut self) -> Self {
        self.total = self.parts().iter().map(|(_, bytes)| bytes).sum();
        self
    }
}

/// The memory of a rank of a stage, whose kept activations reach `activations` bytes.
pub(super) fn of_stage(setup: &Setup<'_>, stage: usize, activations: u64) -> Memory {
    let bytes = setup.bytes;
    let share = |is_sharded: bool, size: u64| sharded(setup, stage, is_sharded, |p| p.trainable) * size;
    let sharding = setup.sharding();
    let is_full = sharding == Sharding::Full;
    // Put-off gradients of weights come at once, and are reduced after that.
    let comes_at_once = sharding.divides_gradients() && setup.schedule == ScheduleKind::ZeroBubbleH1;
    let deferred = if comes_at_once { share(false, bytes.gradient) } else { 0 };
    let states = states(setup, stage);
    let held = Memory {
        parameters: sharded(setup, stage, is_full, |p| !is_apart(p)) * bytes.parameter
            + setup.parameters(stage).filter(|p| is_apart(p)).map(|p| p.bytes(0)).sum::<u64>(),
        gradients: share(sharding.divides_gradients(), bytes.gradient) + deferred,
        optimizer: states.on_device,
        host_optimizer: states.on_host,
        ..Memory::default()
    };
    // After backward: the buffers of the reduction over replicas, at once or bucket by bucket.
    let bucket = largest_bucket(setup, stage);
    let reducing = Memory { reduction: bucket, ..held }.summed();
    // Before the first micro-batch's backward there are no sums.
    let is_first = setup.shape.num_microbatches == 1 && deferred == 0;
    let moments = setup.stages[stage].iter().flat_map(|chunk| {
        let moments = moments_of_backward(setup, chunk, activations);
        moments.into_iter().map(|Moment { mut memory, summed }| {
            let summed = if is_first { (held.gradients as f64 * summed) as u64 } else { held.gradients };
            memory.gradients = summed;
            let gathered = if is_full { gathered(setup, stage) } else { 0 };
            let reduction = if sharding.divides_gradients() { bucket } else { 0 };
            let Memory { parameters, optimizer, host_optimizer, .. } = held;
            Memory { parameters, optimizer, host_optimizer, gathered, reduction, ..memory }.summed()
        })
    });
    moments.chain([reducing]).max_by_key(|memory| memory.total).expect("one at least")
}

/// Bytes of a rank's optimizer state.
struct States {
    on_device: u64,
    on_host: u64,
}

/// Place of the optimizer state of a rank.
fn states(setup: &Setup<'_>, stage: usize) -> States {
    let (bytes, is_divided) = (setup.bytes, setup.sharding().divides_state());
    let tensors = setup.parameters(stage).filter(|p| p.trainable).count() as u64;
    let chosen = rules::find(setup.config.optimizer.optimizer);
    let with =
        |rule: &Rule| sharded(setup, stage, is_divided, |p| p.trainable && setup.rule(p).declared == rule.declared);
    let elements = if chosen.unit == Unit::Element { with(chosen) } else { 0 };
    // Only the chosen rule keeps formats; of others each element has its states and a master.
    let master = if bytes.parameter < 4 { 4 } else { 0 };
    let others = rules::RULES.iter().filter(|rule| rule.declared != chosen.declared || rule.unit == Unit::Parameter);
    let of_others = others.map(|rule| {
        let of_element = if rule.unit == Unit::Element { rule.state_bytes(&setup.config.optimizer, &[1]) } else { 0 };
        with(rule) * (of_element + master)
    });
    let of_others = of_others.sum::<u64>() + whole_states(setup, stage);
    // Averages of weights are float32.
    let has_averages = setup.config.optimizer.ema_decay.is_some();
    let averages = if has_averages { 4 * sharded(setup, stage, is_divided, |p| p.trainable) } else { 0 };
    let moved = offloaded(setup, stage);
    let of_elements = |elements: u64, bytes: f64| (elements as f64 * bytes) as u64;
    // A tensor of which a rank has a part has its scales there too.
    States {
        on_device: of_elements(elements - moved.elements, bytes.optimizer)
            + (tensors - moved.tensors) * bytes.scales
            + of_others
            + averages,
        on_host: of_elements(elements, bytes.host_optimizer)
            + of_elements(moved.elements, bytes.optimizer)
            + tensors * bytes.host_scales
            + moved.tensors * bytes.scales,
    }
}

/// States of the parameters that are updated whole, on the rank that has most.
fn whole_states(setup: &Setup<'_>, stage: usize) -> u64 {
    let rules: BTreeMap<&str, &Rule> = setup.parameters(stage).map(|p| (p.name.as_str(), setup.rule(p))).collect();
    let of_kind = |replicas| {
        let Some((holders, layouts)) = setup.whole(stage, replicas) else { return 0 };
        let bytes = |layout: &WholeLayout| rules[layout.name()].state_bytes(&setup.config.optimizer, layout.shape());
        let of_rank = |rank| layouts.iter().filter(|layout| layout.owner == rank).map(bytes).sum::<u64>();
        (0..holders.len()).map(of_rank).max().unwrap_or(0)
    };
    of_kind(ReplicaGroup::Dense) + of_kind(ReplicaGroup::Expert)
}

/// Part of a rank's parameters with optimizer state in host memory by choice.
#[derive(Clone, Copy, Default)]
pub(super) struct Offloaded {
    pub elements: u64,
    tensors: u64,
}

/// The parameters that the run chooses, by the ranges that the first rank owns.
pub(super) fn offloaded(setup: &Setup<'_>, stage: usize) -> Offloaded {
    let Some(OffloadSettings { fraction, .. }) = setup.optimizer_offload else { return Offloaded::default() };
    let is_divided = setup.sharding().divides_state();
    let trained = || setup.parameters(stage).filter(|parameter| parameter.trainable);
    let owned = |parameter: &Declaration| {
        let ranks = if is_divided { setup.shards().count_for(parameter.placement.replicas) } else { 1 };
        owned_range(parameter.num_elements(), 0, ranks).len()
    };
    let sizes: Vec<usize> = trained().map(owned).collect();
    let chosen = trained().zip(optim::offloaded(&sizes, fraction)).filter(|(_, is_moved)| *is_moved);
    let names: HashSet<&str> = chosen.map(|(parameter, _)| parameter.name.as_str()).collect();
    let elements = sharded(setup, stage, is_divided, |parameter| names.contains(parameter.name.as_str()));
    Offloaded { elements, tensors: names.len() as u64 }
}

/// A moment of a backward pass.
struct Moment {
    /// Memory that changes within a step; without states.
    memory: Memory,
    /// Share of the chunk's gradients that are summed already, `0..=1`.
    summed: f64,
}

/// The moments of the backward of a chunk's micro-batch, one a segment, where activations have
/// reached `most`.
fn moments_of_backward(setup: &Setup<'_>, chunk: &Chunk, most: u64) -> Vec<Moment> {
    let bytes = setup.bytes;
    let on_cpu = setup.config.computes_on_cpu();
    let threads = setup.config.train.num_threads.filter(|_| on_cpu).unwrap_or(1) as u64;
    let each = if setup.sharding().divides_gradients() { bytes.parameter.max(bytes.gradient) } else { bytes.parameter };
    let (used, done) = gradients_by_segment(chunk);
    let all: u64 = done.iter().sum::<u64>().max(1);
    // Of other micro-batches, and of this one.
    let ChunkActivations { kept: of_this, returned, .. } = of_chunk(setup, chunk);
    let others = most.saturating_sub(of_this);
    let regions = chunk_regions(setup, chunk);
    let kept_of = |region: &Region| match region.recomputed {
        true => chunk.costs[region.segments.start].input * bytes.stream,
        false => region.segments.clone().map(|segment| kept(setup, chunk, segment, region).0).sum::<u64>(),
    };
    let mut before: u64 = regions.iter().map(kept_of).sum();
    let (mut moments, mut summed) = (Vec::with_capacity(chunk.costs.len()), 0_u64);
    for region in regions.iter().rev() {
        let kept_by = |segment: usize| kept(setup, chunk, segment, region).0;
        before -= kept_of(region);
        let (mut fresh, mut left) = (0, region.segments.clone().map(kept_by).sum::<u64>());
        for segment in region.segments.clone().rev() {
            let cost = &chunk.costs[segment];
            fresh += used[segment] * each;
            // Recompute always keeps the input.
            let input = if region.recomputed { kept_of(region) } else { 0 };
            let (kept, again) = if region.recomputed { (input, left - input.min(left)) } else { (left, 0) };
            let memory = Memory {
                activations: others + before + kept,
                recompute: again + cost.brought_back,
                returned,
                backward: cost.backward + fresh,
                cross_entropy: cost.cross_entropy,
                attention: threads * cost.attention,
                ..Memory::default()
            };
            moments.push(Moment { memory, summed: summed as f64 / all as f64 });
            left -= kept_by(segment);
        }
        summed += region.segments.clone().map(|segment| done[segment]).sum::<u64>();
    }
    moments
}

/// Elements of the parameters that each segment of a chunk uses, and of those whose gradient is
/// complete when backward has left it.
fn gradients_by_segment(chunk: &Chunk) -> (Vec<u64>, Vec<u64>) {
    let (mut used, mut done) = (vec![0; chunk.costs.len()], vec![0; chunk.costs.len()]);
    for parameter in chunk.declarations.parameters().iter().filter(|parameter| parameter.trainable) {
        let elements = parameter.num_elements() as u64;
        // The last use comes first in backward, and creates the sum that all other uses are added
        // to.
        done[parameter.segments[parameter.segments.len() - 1]] += elements;
        parameter.segments.iter().for_each(|segment| used[*segment] += elements);
    }
    (used, done)
}

/// True if a parameter has its own bytes an element, and is whole on each rank.
fn is_apart(parameter: &Declaration) -> bool {
    parameter.quantization.is_some() || parameter.is_float32()
}

/// Elements of the `wanted` parameters of a rank: all, or its share among the replicas.
fn sharded(setup: &Setup<'_>, stage: usize, is_sharded: bool, wanted: impl Fn(&Declaration) -> bool) -> u64 {
    let of = |replicas| {
        let ranks = if is_sharded { setup.shards().count_for(replicas) as u64 } else { 1 };
        let parameters = setup.parameters(stage).filter(|p| p.placement.replicas == replicas && wanted(p));
        parameters.map(|p| p.num_elements() as u64).sum::<u64>().div_ceil(ranks)
    };
    of(ReplicaGroup::Dense) + of(ReplicaGroup::Expert)
}

/// Parameters of each region of a chunk, in elements.
fn region_sizes(setup: &Setup<'_>, chunk: &Chunk) -> Vec<u64> {
    let mut sizes = vec![0; chunk.costs.len()];
    for parameter in chunk.declarations.parameters().iter().filter(|parameter| !parameter.is_float32()) {
        sizes[parameter.segments[0]] += parameter.num_elements() as u64;
    }
    chunk_regions(setup, chunk).into_iter().map(|region| sizes[region.segments].iter().sum()).collect()
}

/// Largest region, with its neighbor if that is gathered meanwhile.
fn gathered(setup: &Setup<'_>, stage: usize) -> u64 {
    let at_once = if setup.distribution.overlap_param_gather { 2 } else { 1 };
    let most = |sizes: Vec<u64>| {
        let windows = sizes.windows(at_once.min(sizes.len().max(1)));
        windows.map(|regions| regions.iter().sum()).max().unwrap_or(0)
    };
    let sizes = setup.stages[stage].iter().map(|chunk| most(region_sizes(setup, chunk)));
    sizes.max().unwrap_or(0_u64) * setup.bytes.parameter
}
