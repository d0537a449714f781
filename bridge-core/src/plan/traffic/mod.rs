//! Communication of a rank in a step: operations, and bytes of payload as
//! [`bridge_dist::comm::counting`] counts them. Communication inside forward and backward is the
//! model's own account ([`SegmentCost::exchanges`]); `replicas` has the rest.
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
//! After the micro-batches: gradients over replicas, bucket by bucket; of parameters that
//! tensor-parallel ranks share, and of an embedding tied over two stages, in float32, only the
//! rank's part if optimizer state is sharded; token counts, losses, the norm, and agreements on
//! data errors and stop requests. Recompute repeats the forward's communication.
//!
//! A step that evaluates, saves, or logs norms of parameters does more.

mod replicas;

use bridge_dist::comm::Operation;
use bridge_dist::mesh::GroupKind;
use serde::{Serialize, Serializer};

use super::segments::chunk_regions;
use super::setup::Setup;
use crate::model::{PassKind, ReplicaGroup, SegmentCost, TrafficKind};
use crate::optim::{EXPERT_WHOLE, ROW_COPIES, WHOLE};

pub(super) use replicas::largest_bucket;

/// Bytes of an element that tensor-parallel ranks reduce: float32.
const FLOAT32: u64 = 4;
/// Norms, losses and token counts are in float64.
const FLOAT64: u64 = 8;

/// Group that communicates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TrafficGroup {
    /// All ranks.
    World,
    /// A group of the mesh.
    Mesh(GroupKind),
    /// Tensor-parallel ranks that hold the same keys and values.
    RowCopies,
    /// Ranks that hold parts of parameters that are updated whole: dense ones, or experts'.
    Whole(ReplicaGroup),
}

impl TrafficGroup {
    /// The name that the group's communicator has.
    pub const fn name(self) -> &'static str {
        match self {
            Self::World => "world",
            Self::Mesh(kind) => kind.name(),
            Self::RowCopies => ROW_COPIES,
            Self::Whole(ReplicaGroup::Dense) => WHOLE,
            Self::Whole(ReplicaGroup::Expert) => EXPERT_WHOLE,
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
    /// Purpose of the communication.
    pub kind: TrafficKind,
    /// The group.
    pub group: TrafficGroup,
    /// Ranks of the group.
    pub group_size: usize,
    /// The operation.
    #[serde(serialize_with = "operation_name")]
    pub operation: Operation,
    /// Number of operations.
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
    /// A segment that runs forward and backward so often.
    fn segment(&mut self, cost: &SegmentCost, forward: u64, backward: u64) {
        for exchange in &cost.exchanges {
            let times = match exchange.pass {
                PassKind::Forward => forward,
                PassKind::Backward => backward,
            };
            let way = Way::on(exchange.kind, exchange.group, exchange.operation);
            self.add_uneven(way, times * exchange.operations, times * exchange.bytes);
        }
    }

    /// Each chunk sends its output on and the gradient of its input back, unless it is at an end of
    /// the chain.
    fn pipeline(&mut self, stage: usize, microbatches: u64) {
        let (setup, shape) = (self.setup, self.setup.shape);
        let num_places = shape.num_virtual_stages();
        // Tensors and bytes of the input of the first segment at or after a place.
        let message = |place: usize| {
            let chunks =
                (place..num_places).map(|place| &setup.stages[place % shape.num_stages][place / shape.num_stages]);
            let input = chunks.filter_map(|chunk| chunk.costs.first()).next();
            input.map_or((0, 0), |cost| (1 + cost.carried_tensors, cost.input * setup.bytes.pipeline))
        };
        for chunk in 0..shape.num_chunks {
            let place = shape.virtual_stage(stage, chunk);
            let neighbours = [place, place + 1].into_iter().filter(|boundary| (1..num_places).contains(boundary));
            let (operations, bytes) = neighbours.map(message).fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
            for end in [Operation::Send, Operation::Recv] {
                let way = Way::on(TrafficKind::Pipeline, GroupKind::Pipeline, end);
                self.add_uneven(way, operations * microbatches, bytes * microbatches);
            }
        }
    }

    /// `times` operations with a payload of `bytes` each.
    fn add(&mut self, way: Way, times: u64, bytes: u64) {
        self.add_uneven(way, times, times * bytes);
    }

    /// `times` operations with a payload of `bytes` in all. Groups of one rank do nothing.
    fn add_uneven(&mut self, Way(kind, group, operation): Way, times: u64, bytes: u64) {
        let group_size = match group {
            TrafficGroup::World => self.setup.layout.world_size,
            TrafficGroup::Mesh(group) => self.setup.group_size(group),
            TrafficGroup::RowCopies => self.setup.row_copies(),
            TrafficGroup::Whole(replicas) => self.setup.holders(0, replicas).len(),
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

/// Communication of a rank of a stage in a step.
pub(super) fn of_stage(setup: &Setup<'_>, stage: usize) -> Vec<Traffic> {
    let mut tally = Tally { setup, traffic: Vec::new() };
    let microbatches = setup.shape.num_microbatches as u64;
    for chunk in &setup.stages[stage] {
        for region in chunk_regions(setup, chunk) {
            let forwards = microbatches * if region.recomputed { 2 } else { 1 };
            for cost in &chunk.costs[region.segments] {
                tally.segment(cost, forwards, microbatches);
            }
        }
    }
    tally.pipeline(stage, microbatches);
    tally.replicas(stage, microbatches);
    tally.shared_gradients(stage);
    tally.scalars(stage, microbatches);
    tally.traffic
}
