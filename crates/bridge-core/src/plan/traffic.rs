//! What a rank communicates in a step: operations, and bytes of payload as [`bridge_dist::comm::counting`] counts them.
//!
//! The contract with the model and the loop that these numbers describe:
//!
//! | what | forward | backward |
//! | --- | --- | --- |
//! | tensor parallel: embedding | all-reduce | |
//! | attention and feed-forward, each | all-reduce after the row-parallel projection | all-reduce of the input's gradient |
//! | the same with sequence parallelism | all-gather before, reduce-scatter after | reduce-scatter, all-gather |
//! | loss | maximum, sum of exponentials, target logit of each token, in float32 | all-reduce of the input's gradient |
//! | pipeline | the activation to the next stage | its gradient to the one before |
//! | context parallel | all-gather of keys and values | reduce-scatter of their gradients |
//! | experts | all-to-all to the experts and back (inside split experts all-gather and reduce-scatter) | the same again |
//!
//! After the micro-batches: gradients over replicas; of parameters that tensor-parallel ranks share, and of an embedding tied over two
//! stages, in float32, what the rank keeps after that (its part, where optimizer state is sharded); token counts, losses and the norm.
//! Recompute repeats the forward's communication.

use bridge_dist::comm::counting::Operation;
use bridge_dist::mesh::GroupKind;
use bridge_kernels::cross_entropy;
use serde::{Serialize, Serializer};

use super::parameters::list_of_stage;
use super::segments::chunk_regions;
use super::setup::Setup;
use crate::config::RerunMode;
use crate::model::{ReplicaGroup, Segment, SegmentRole};
use crate::optim::Sharding;

/// Losses and logits' statistics are in float32.
const FLOAT32: u64 = 4;
/// Norms, losses and token counts are in float64.
const FLOAT64: u64 = 8;

/// What communication is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum TrafficKind {
    /// Activations and their gradients between tensor-parallel ranks.
    Tensor,
    /// Statistics of the loss over a split vocabulary.
    Loss,
    /// Keys and values between context-parallel ranks.
    Context,
    /// Tokens to and from experts.
    Expert,
    /// Activations and their gradients between pipeline stages.
    Pipeline,
    /// Gradients over replicas.
    Gradients,
    /// Parameters over replicas that share optimizer state or the parameters themselves.
    Parameters,
    /// Gradients of parameters that tensor-parallel ranks hold copies of.
    SharedGradients,
    /// The gradient of an embedding tied over two stages.
    TiedEmbedding,
    /// Norms, losses and token counts.
    Scalars,
}

impl TrafficKind {
    /// Every kind.
    pub const ALL: [Self; 10] = [
        Self::Tensor,
        Self::Loss,
        Self::Context,
        Self::Expert,
        Self::Pipeline,
        Self::Gradients,
        Self::Parameters,
        Self::SharedGradients,
        Self::TiedEmbedding,
        Self::Scalars,
    ];

    /// Its name, for people.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Tensor => "tensor parallel",
            Self::Loss => "loss statistics",
            Self::Context => "context parallel",
            Self::Expert => "experts",
            Self::Pipeline => "pipeline",
            Self::Gradients => "gradients",
            Self::Parameters => "parameters",
            Self::SharedGradients => "shared gradients",
            Self::TiedEmbedding => "tied embedding",
            Self::Scalars => "scalars",
        }
    }
}

/// Who communicates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TrafficGroup {
    /// All ranks.
    World,
    /// A group of the mesh.
    Mesh(GroupKind),
}

impl TrafficGroup {
    /// The name that the group's communicator has.
    pub const fn name(self) -> &'static str {
        match self {
            Self::World => "world",
            Self::Mesh(kind) => kind.name(),
        }
    }
}

impl Serialize for TrafficGroup {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

/// One operation on one group, over a step.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Traffic {
    /// What it is for.
    pub kind: TrafficKind,
    /// The group.
    pub group: TrafficGroup,
    /// Ranks of the group.
    pub group_size: usize,
    /// The operation.
    #[serde(serialize_with = "operation_name")]
    pub operation: Operation,
    /// How often.
    pub operations: u64,
    /// Bytes of payload in all.
    pub bytes: u64,
    /// Bytes that the rank sends if a ring algorithm does it.
    pub wire_bytes: f64,
}

fn operation_name<S: Serializer>(operation: &Operation, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(operation.name())
}

/// Bytes that a rank sends in a ring (all-to-all: directly) when it hands in `bytes`.
fn wire_bytes(operation: Operation, bytes: u64, group_size: usize) -> f64 {
    let (bytes, others, size) = (bytes as f64, (group_size - 1) as f64, group_size as f64);
    match operation {
        Operation::AllReduce => 2.0 * bytes * others / size,
        Operation::ReduceScatter | Operation::AllToAll => bytes * others / size,
        Operation::AllGather => bytes * others,
        Operation::Send | Operation::Broadcast => bytes,
        Operation::Recv | Operation::Barrier => 0.0,
    }
}

/// Sums up operations.
struct Tally<'s, 'a> {
    setup: &'s Setup<'a>,
    traffic: Vec<Traffic>,
}

/// An operation on a group for a purpose.
#[derive(Clone, Copy)]
struct Way(TrafficKind, TrafficGroup, Operation);

impl Way {
    const fn on(kind: TrafficKind, group: GroupKind, operation: Operation) -> Self {
        Self(kind, TrafficGroup::Mesh(group), operation)
    }
}

impl Tally<'_, '_> {
    /// `times` operations with a payload of `bytes` each.
    fn add(&mut self, way: Way, times: u64, bytes: u64) {
        self.add_uneven(way, times, times * bytes);
    }

    /// `times` operations with a payload of `bytes` in all. Groups of one rank do nothing.
    fn add_uneven(&mut self, Way(kind, group, operation): Way, times: u64, bytes: u64) {
        let group_size = match group {
            TrafficGroup::World => self.setup.layout.world_size,
            TrafficGroup::Mesh(group) => self.setup.group_size(group),
        };
        if group_size == 1 || times == 0 {
            return;
        }
        let same = |t: &&mut Traffic| (t.kind, t.group, t.operation) == (kind, group, operation);
        if self.traffic.iter_mut().find(same).is_none() {
            self.traffic.push(Traffic { kind, group, group_size, operation, operations: 0, bytes: 0, wire_bytes: 0.0 });
        }
        let entry = self.traffic.iter_mut().find(same).expect("just pushed");
        entry.operations += times;
        entry.bytes += bytes;
        entry.wire_bytes += wire_bytes(operation, bytes, group_size);
    }
}

impl Setup<'_> {
    /// Ranks of a group of this kind.
    pub(super) fn group_size(&self, group: GroupKind) -> usize {
        let layout = self.layout;
        let instances = self.config.ddp.num_distributed_optimizer_instances;
        match group {
            GroupKind::Tensor => layout.tensor,
            GroupKind::Context => layout.context,
            GroupKind::Data => layout.data,
            GroupKind::DataContext => layout.data * layout.context,
            GroupKind::Pipeline => layout.pipeline,
            GroupKind::Model => layout.tensor * layout.pipeline,
            GroupKind::TensorContext => layout.tensor * layout.context,
            GroupKind::TensorDataContext => layout.tensor * layout.data * layout.context,
            GroupKind::Embedding => layout.pipeline.min(2),
            GroupKind::PositionEmbedding => 1,
            GroupKind::Expert => layout.expert,
            GroupKind::ExpertTensor => layout.expert_tensor,
            GroupKind::ExpertTensorExpert => layout.expert_tensor * layout.expert,
            GroupKind::ExpertModel => layout.expert_tensor * layout.expert * layout.pipeline,
            GroupKind::ExpertData => layout.expert_data,
            GroupKind::DistributedOptimizer => layout.data * layout.context / instances,
            GroupKind::ExpertDistributedOptimizer => layout.expert_data / instances,
            GroupKind::DistributedOptimizerReplicas | GroupKind::ExpertDistributedOptimizerReplicas => instances,
        }
    }
}

/// What a rank of a stage communicates in a step.
pub(super) fn of_stage(setup: &Setup<'_>, stage: usize) -> Vec<Traffic> {
    let mut tally = Tally { setup, traffic: Vec::new() };
    let microbatches = setup.shape.num_microbatches as u64;
    for chunk in &setup.stages[stage] {
        for (region, segments) in chunk_regions(setup, chunk) {
            let forwards = microbatches * if region.recomputed { 2 } else { 1 };
            for segment in segments {
                tally.segment(segment, forwards, microbatches);
            }
        }
    }
    tally.pipeline(stage, microbatches);
    tally.replicas(stage, microbatches);
    tally.shared_gradients(stage);
    tally.scalars(stage, microbatches);
    tally.traffic
}

impl Tally<'_, '_> {
    fn segment(&mut self, segment: Segment, forwards: u64, backwards: u64) {
        match segment.role {
            SegmentRole::Embedding => self.embedding(forwards, backwards),
            SegmentRole::Attention => self.attention(forwards, backwards),
            SegmentRole::Mlp => self.mlp(segment.layer, forwards, backwards),
            SegmentRole::Layer => {
                self.attention(forwards, backwards);
                self.mlp(segment.layer, forwards, backwards);
            }
            SegmentRole::Head => self.head(forwards, backwards),
        }
    }

    /// The stream between blocks and inside them, in bytes.
    fn streams(&self) -> (u64, u64) {
        let row = self.setup.model.hidden_size as u64 * self.setup.bytes.collective;
        (self.setup.tokens_between_blocks() * row, self.setup.tokens() * row)
    }

    /// From between blocks into one: the input of a column-parallel projection.
    fn enter_block(&mut self, forwards: u64, backwards: u64) {
        let way = |operation| Way::on(TrafficKind::Tensor, GroupKind::Tensor, operation);
        let (between, inside) = self.streams();
        if self.setup.layout.sequence_parallel {
            self.add(way(Operation::AllGather), forwards, between);
            self.add(way(Operation::ReduceScatter), backwards, inside);
        } else {
            self.add(way(Operation::AllReduce), backwards, inside);
        }
    }

    /// Out of a block: the partial sums of a row-parallel projection, or of a vocabulary-parallel look-up.
    fn leave_block(&mut self, forwards: u64, backwards: u64) {
        let way = |operation| Way::on(TrafficKind::Tensor, GroupKind::Tensor, operation);
        let (between, inside) = self.streams();
        if self.setup.layout.sequence_parallel {
            self.add(way(Operation::ReduceScatter), forwards, inside);
            self.add(way(Operation::AllGather), backwards, between);
        } else {
            self.add(way(Operation::AllReduce), forwards, inside);
        }
    }

    fn embedding(&mut self, forwards: u64, backwards: u64) {
        self.leave_block(forwards, backwards);
    }

    fn attention(&mut self, forwards: u64, backwards: u64) {
        self.enter_block(forwards, backwards);
        let setup = self.setup;
        let width = (setup.model.num_query_groups / setup.layout.tensor * setup.model.kv_channels) as u64;
        let keys = setup.tokens() * width * setup.bytes.collective;
        let way = |operation| Way::on(TrafficKind::Context, GroupKind::Context, operation);
        // Keys and values each.
        self.add(way(Operation::AllGather), 2 * forwards, keys);
        self.add(way(Operation::ReduceScatter), 2 * backwards, keys * setup.layout.context as u64);
        self.leave_block(forwards, backwards);
    }

    fn mlp(&mut self, layer: Option<usize>, forwards: u64, backwards: u64) {
        if !layer.is_some_and(|layer| self.setup.is_moe(layer)) {
            self.enter_block(forwards, backwards);
            self.leave_block(forwards, backwards);
            return;
        }
        self.experts(forwards, backwards);
        if self.setup.model.moe_shared_expert_intermediate_size.is_some() {
            self.enter_block(forwards, backwards);
            self.leave_block(forwards, backwards);
        }
    }

    fn experts(&mut self, forwards: u64, backwards: u64) {
        let setup = self.setup;
        let row = setup.model.hidden_size as u64 * setup.bytes.collective;
        let routed = setup.tokens_between_blocks() * setup.model.moe_router_topk as u64 * row;
        let all = routed * setup.layout.expert_tensor as u64;
        let way = |group, operation| Way::on(TrafficKind::Expert, group, operation);
        // To the experts and back, in forward and in backward.
        self.add(way(GroupKind::Expert, Operation::AllToAll), 2 * (forwards + backwards), routed);
        self.add(way(GroupKind::ExpertTensor, Operation::AllGather), forwards + backwards, routed);
        self.add(way(GroupKind::ExpertTensor, Operation::ReduceScatter), forwards + backwards, all);
    }

    /// Three numbers for each token: the largest logit; then, in one operation, the sum of exponentials and the target's logit. The loss
    /// goes through tokens in chunks.
    fn head(&mut self, forwards: u64, backwards: u64) {
        self.enter_block(forwards, backwards);
        let setup = self.setup;
        let rows = setup.padded_vocab / setup.layout.tensor as u64;
        let chunk = cross_entropy::chunk_rows(setup.tokens() as usize, rows as usize) as u64;
        let operations = 2 * setup.tokens().div_ceil(chunk.max(1)) * forwards;
        let way = Way::on(TrafficKind::Loss, GroupKind::Tensor, Operation::AllReduce);
        self.add_uneven(way, operations, 3 * forwards * setup.tokens() * FLOAT32);
    }

    /// Each chunk sends its output on and the gradient of its input back, unless it is at an end of the chain.
    fn pipeline(&mut self, stage: usize, microbatches: u64) {
        let shape = self.setup.shape;
        let message =
            self.setup.tokens_between_blocks() * self.setup.model.hidden_size as u64 * self.setup.bytes.pipeline;
        for chunk in 0..shape.num_chunks {
            let place = shape.virtual_stage(stage, chunk);
            let neighbours = u64::from(place > 0) + u64::from(place + 1 < shape.num_virtual_stages());
            for end in [Operation::Send, Operation::Recv] {
                let way = Way::on(TrafficKind::Pipeline, GroupKind::Pipeline, end);
                self.add(way, neighbours * microbatches, message);
            }
        }
    }

    fn replicas(&mut self, stage: usize, microbatches: u64) {
        let parameters = list_of_stage(self.setup, stage);
        let (dense, expert) = self.setup.shards();
        let groups = [
            (
                ReplicaGroup::Dense,
                dense,
                GroupKind::DataContext,
                [GroupKind::DistributedOptimizer, GroupKind::DistributedOptimizerReplicas],
            ),
            (
                ReplicaGroup::Expert,
                expert,
                GroupKind::ExpertData,
                [GroupKind::ExpertDistributedOptimizer, GroupKind::ExpertDistributedOptimizerReplicas],
            ),
        ];
        for (replicas, shards, whole, parts) in groups {
            let counts: Vec<u64> = parameters.iter().filter(|p| p.replicas == replicas).map(|p| p.local).collect();
            if counts.is_empty() {
                continue;
            }
            if self.setup.sharding == Sharding::None {
                let ranks = self.setup.group_size(whole) as u64;
                let way = Way::on(TrafficKind::Gradients, whole, Operation::AllReduce);
                self.add(way, 1, ranks * largest_part(&counts, ranks) * self.setup.bytes.reduction);
            } else {
                self.sharded_replicas(largest_part(&counts, shards), parts, microbatches);
            }
        }
    }

    /// Gradients to the shards, and parameters back from them. Each rank's shard has `shard` elements.
    fn sharded_replicas(&mut self, shard: u64, [group, copies]: [GroupKind; 2], microbatches: u64) {
        let setup = self.setup;
        let size = setup.group_size(group) as u64;
        let gradients = shard * setup.bytes.reduction;
        // What is sharded is there only for as long as a micro-batch needs it.
        let is_full = setup.sharding == Sharding::Full;
        let (reductions, gathers) = if is_full { (microbatches, 2 * microbatches) } else { (1, 1) };
        let reduce_scatter = Way::on(TrafficKind::Gradients, group, Operation::ReduceScatter);
        self.add(reduce_scatter, reductions, gradients * size);
        self.add(Way::on(TrafficKind::Gradients, copies, Operation::AllReduce), 1, gradients);
        let parameters = shard * setup.bytes.parameter;
        self.add(Way::on(TrafficKind::Parameters, group, Operation::AllGather), gathers, parameters);
    }

    fn shared_gradients(&mut self, stage: usize) {
        let setup = self.setup;
        let shards = if setup.sharding == Sharding::None { 1 } else { setup.shards().0 };
        let shared: Vec<u64> =
            list_of_stage(setup, stage).iter().filter(|p| p.partial_gradient).map(|p| p.local).collect();
        if !shared.is_empty() {
            let way = Way::on(TrafficKind::SharedGradients, GroupKind::Tensor, Operation::AllReduce);
            self.add(way, 1, largest_part(&shared, shards) * FLOAT32);
        }
        let is_end = stage == 0 || stage + 1 == setup.layout.pipeline;
        if setup.tied_over_stages() && is_end {
            let table = setup.padded_vocab / setup.layout.tensor as u64 * setup.model.hidden_size as u64;
            let way = Way::on(TrafficKind::TiedEmbedding, GroupKind::Embedding, Operation::AllReduce);
            self.add(way, 1, largest_part(&[table], shards) * FLOAT32);
        }
    }

    /// Tokens of the micro-batches, the loss with its divisor, the loss of each micro-batch; the norm of the gradients.
    fn scalars(&mut self, stage: usize, microbatches: u64) {
        let figures = 2 * microbatches + 2;
        let replicas = Way::on(TrafficKind::Scalars, GroupKind::DataContext, Operation::AllReduce);
        self.add_uneven(replicas, 3, figures * FLOAT64);
        let is_root = stage + 1 == self.setup.layout.pipeline;
        let stages = Way::on(TrafficKind::Scalars, GroupKind::Pipeline, Operation::Broadcast);
        self.add_uneven(stages, 2, if is_root { (microbatches + 2) * FLOAT64 } else { 0 });
        // The norm, and where results are validated the vote on repeating the step.
        let votes = u64::from(self.setup.config.rerun_state_machine.rerun_mode != RerunMode::Disabled);
        self.add(Way(TrafficKind::Scalars, TrafficGroup::World, Operation::AllReduce), 1 + votes, FLOAT64);
    }
}

/// Elements of the largest of `ranks` parts, where every parameter is cut into consecutive ranges that differ by one element at most, and
/// rank `r` has the `r`-th range of each.
fn largest_part(parameters: &[u64], ranks: u64) -> u64 {
    let start = |count: u64, rank: u64| (u128::from(count) * u128::from(rank) / u128::from(ranks)) as u64;
    let even: u64 = parameters.iter().filter(|count| count.is_multiple_of(ranks)).map(|count| count / ranks).sum();
    let uneven: Vec<u64> = parameters.iter().copied().filter(|count| !count.is_multiple_of(ranks)).collect();
    let part = |rank| uneven.iter().map(|count| start(*count, rank + 1) - start(*count, rank)).sum::<u64>();
    let largest = if uneven.is_empty() { 0 } else { (0..ranks).map(part).max().unwrap_or(0) };
    even + largest
}
