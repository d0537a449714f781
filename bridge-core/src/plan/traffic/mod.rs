//! What a rank communicates in a step: operations, and bytes of payload as [`bridge_dist::comm::counting`] counts them. `model` has what
//! happens inside forward and backward, `replicas` what comes after.
//!
//! The contract with the model and the loop that these numbers describe:
//!
//! | what | forward | backward |
//! | --- | --- | --- |
//! | tensor parallel: embedding | all-reduce | |
//! | attention and feed-forward, each | all-reduce after the row-parallel projection | all-reduce of the input's gradient |
//! | the same with sequence parallelism | all-gather before, reduce-scatter after | reduce-scatter, all-gather |
//! | router | all-gather of scores with sequence parallelism | all-reduce, or reduce-scatter, of their gradients |
//! | loss | maximum; sum of exponentials and target logit of each token, in float32 | all-reduce of the input's gradient |
//! | pipeline | the activation to the next stage | its gradient to the one before |
//! | context parallel | all-gather of keys and values, and of document numbers | reduce-scatter of gradients of keys and values |
//! | experts, all-to-all | numbers of tokens; tokens to the experts and back | gradients there and back |
//! | experts, all-gather | tokens, choices and weights to all; sums back | reduce-scatters, and an all-gather |
//!
//! After the micro-batches: gradients over replicas, bucket by bucket; of parameters that tensor-parallel ranks share, and of an embedding
//! tied over two stages, in float32, what the rank keeps after that (its part, where optimizer state is sharded); token counts, losses, the
//! norm, and what ranks ask each other: whether data could be read, whether to stop. Recompute repeats the forward's communication.
//!
//! A step that evaluates, saves, or logs norms of parameters does more.

mod model;
mod replicas;

use bridge_dist::comm::Operation;
use bridge_dist::mesh::GroupKind;
use serde::{Serialize, Serializer};

use super::segments::chunk_regions;
use super::setup::Setup;
use crate::optim::ROW_COPIES;

/// Losses, logits' statistics and router scores are in float32.
const FLOAT32: u64 = 4;
/// Norms, losses and token counts are in float64.
const FLOAT64: u64 = 8;
/// Token counts of experts, choices and document numbers.
const INT64: u64 = 8;

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
    /// Tokens to and from experts, and statistics of the router.
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
    /// Norms, losses and token counts; votes on how to go on.
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
    /// Tensor-parallel ranks that hold the same keys and values.
    RowCopies,
}

impl TrafficGroup {
    /// The name that the group's communicator has.
    pub const fn name(self) -> &'static str {
        match self {
            Self::World => "world",
            Self::Mesh(kind) => kind.name(),
            Self::RowCopies => ROW_COPIES,
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

pub(super) fn operation_name<S: Serializer>(operation: &Operation, serializer: S) -> Result<S::Ok, S::Error> {
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
            TrafficGroup::RowCopies => self.setup.group_copies(),
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
            GroupKind::Embedding => layout.pipeline.min(2),
            GroupKind::PositionEmbedding => 1,
            GroupKind::Expert => layout.expert,
            GroupKind::ExpertTensor => layout.expert_tensor,
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
