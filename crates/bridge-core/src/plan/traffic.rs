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
//! After the micro-batches: gradients over replicas, gradients of parameters that tensor-parallel ranks share, the tied embedding's
//! between its two stages. Recompute repeats the forward's communication.

use bridge_dist::comm::counting::Operation;
use bridge_dist::mesh::GroupKind;
use serde::{Serialize, Serializer};

use super::parameters::list_of_stage;
use super::segments::chunk_regions;
use super::setup::{Setup, Sharding};
use crate::model::{ReplicaGroup, Segment, SegmentRole};

/// Losses and logits' statistics are in float32.
const FLOAT32: u64 = 4;
/// Norms and token counts are in float64.
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
    /// Norms and token counts.
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

/// One operation on one group, over a step.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Traffic {
    /// What it is for.
    pub kind: TrafficKind,
    /// The group.
    #[serde(serialize_with = "group_name")]
    pub group: GroupKind,
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

fn group_name<S: Serializer>(group: &GroupKind, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(group.name())
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
struct Way(TrafficKind, GroupKind, Operation);

impl Tally<'_, '_> {
    /// `times` operations with a payload of `bytes` each. Groups of one rank do nothing.
    fn add(&mut self, Way(kind, group, operation): Way, times: u64, bytes: u64) {
        let group_size = self.setup.group_size(group);
        if group_size == 1 || times == 0 {
            return;
        }
        let same = |t: &&mut Traffic| (t.kind, t.group, t.operation) == (kind, group, operation);
        if self.traffic.iter_mut().find(same).is_none() {
            self.traffic.push(Traffic { kind, group, group_size, operation, operations: 0, bytes: 0, wire_bytes: 0.0 });
        }
        let entry = self.traffic.iter_mut().find(same).expect("just pushed");
        entry.operations += times;
        entry.bytes += times * bytes;
        entry.wire_bytes += wire_bytes(operation, times * bytes, group_size);
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
    tally.scalars(microbatches);
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
        let row = self.setup.model.hidden_size as u64 * self.setup.bytes.activation;
        (self.setup.tokens_between_blocks() * row, self.setup.tokens() * row)
    }

    /// From between blocks into one: the input of a column-parallel projection.
    fn enter_block(&mut self, forwards: u64, backwards: u64) {
        let way = |operation| Way(TrafficKind::Tensor, GroupKind::Tensor, operation);
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
        let way = |operation| Way(TrafficKind::Tensor, GroupKind::Tensor, operation);
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
        let keys = setup.tokens() * width * setup.bytes.activation;
        let way = |operation| Way(TrafficKind::Context, GroupKind::Context, operation);
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
        let row = setup.model.hidden_size as u64 * setup.bytes.activation;
        let routed = setup.tokens_between_blocks() * setup.model.moe_router_topk as u64 * row;
        let all = routed * setup.layout.expert_tensor as u64;
        let way = |group, operation| Way(TrafficKind::Expert, group, operation);
        // To the experts and back, in forward and in backward.
        self.add(way(GroupKind::Expert, Operation::AllToAll), 2 * (forwards + backwards), routed);
        self.add(way(GroupKind::ExpertTensor, Operation::AllGather), forwards + backwards, routed);
        self.add(way(GroupKind::ExpertTensor, Operation::ReduceScatter), forwards + backwards, all);
    }

    fn head(&mut self, forwards: u64, backwards: u64) {
        self.enter_block(forwards, backwards);
        let statistics = self.setup.tokens() * FLOAT32;
        self.add(Way(TrafficKind::Loss, GroupKind::Tensor, Operation::AllReduce), 3 * forwards, statistics);
    }

    /// Each chunk sends its output on and the gradient of its input back, unless it is at an end of the chain.
    fn pipeline(&mut self, stage: usize, microbatches: u64) {
        let shape = self.setup.shape;
        let message = self.setup.tokens_between_blocks() * self.setup.model.hidden_size as u64 * self.setup.bytes.pipeline;
        for chunk in 0..shape.num_chunks {
            let place = shape.virtual_stage(stage, chunk);
            let neighbours = u64::from(place > 0) + u64::from(place + 1 < shape.num_virtual_stages());
            for end in [Operation::Send, Operation::Recv] {
                let way = Way(TrafficKind::Pipeline, GroupKind::Pipeline, end);
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
            let elements: u64 = parameters.iter().filter(|p| p.replicas == replicas).map(|p| p.local).sum();
            if elements == 0 {
                continue;
            }
            if self.setup.sharding == Sharding::None {
                let way = Way(TrafficKind::Gradients, whole, Operation::AllReduce);
                self.add(way, 1, elements * self.setup.bytes.gradient);
            } else {
                self.sharded_replicas(elements.div_ceil(shards), parts, microbatches);
            }
        }
    }

    /// Gradients to the shards, and parameters back from them. Each rank's shard has `shard` elements.
    fn sharded_replicas(&mut self, shard: u64, [group, copies]: [GroupKind; 2], microbatches: u64) {
        let setup = self.setup;
        let size = setup.group_size(group) as u64;
        let gradients = shard * setup.bytes.gradient;
        // What is sharded is there only for as long as a micro-batch needs it.
        let reductions = if setup.sharding >= Sharding::Gradients { microbatches } else { 1 };
        let gathers = if setup.sharding >= Sharding::Parameters { 2 * microbatches } else { 1 };
        self.add(Way(TrafficKind::Gradients, group, Operation::ReduceScatter), reductions, gradients * size);
        self.add(Way(TrafficKind::Gradients, copies, Operation::AllReduce), 1, gradients);
        let parameters = shard * setup.bytes.parameter;
        self.add(Way(TrafficKind::Parameters, group, Operation::AllGather), gathers, parameters);
    }

    fn shared_gradients(&mut self, stage: usize) {
        let setup = self.setup;
        let parameters = list_of_stage(setup, stage);
        let shared = parameters.iter().filter(|parameter| parameter.partial_gradient);
        let (count, elements) = shared.fold((0, 0), |(count, sum), parameter| (count + 1, sum + parameter.local));
        if count > 0 {
            let way = Way(TrafficKind::SharedGradients, GroupKind::Tensor, Operation::AllReduce);
            self.add(way, 1, elements * setup.bytes.gradient);
        }
        let is_end = stage == 0 || stage + 1 == setup.layout.pipeline;
        if setup.tied_over_stages() && is_end {
            let table = setup.padded_vocab / setup.layout.tensor as u64 * setup.model.hidden_size as u64;
            let way = Way(TrafficKind::TiedEmbedding, GroupKind::Embedding, Operation::AllReduce);
            self.add(way, 1, table * setup.bytes.gradient);
        }
    }

    /// Tokens of every micro-batch, and the norm of the gradients.
    fn scalars(&mut self, microbatches: u64) {
        let way = |group| Way(TrafficKind::Scalars, group, Operation::AllReduce);
        self.add(way(GroupKind::DataContext), microbatches, FLOAT64);
        self.add(way(GroupKind::Model), 1, FLOAT64);
    }
}
