//! Time of a step at given rates of devices and links. A bound for comparing layouts: kernels reach
//! their rate at any size, and links their bandwidth at any message length.

use bridge_dist::mesh::GroupKind;
use serde::Serialize;

use super::memory::offloaded;
use super::segments::all_activations;
use super::setup::Setup;
use super::{Flops, Pipeline, StagePlan, TrafficGroup};
use crate::model::TrafficKind;
use crate::optim::{Sharding, TransferTiming};

/// Rates of devices and links.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rates {
    /// Peak of one device, in TFLOP/s. MFU is relative to it.
    pub device_tflops: f64,
    /// Share of the peak that matrix products reach, `0..=1`.
    pub device_efficiency: f64,
    /// Rate to another node, in gigabits per second.
    pub link_gbps: f64,
    /// Rate inside the node, in gigabits per second.
    pub intra_link_gbps: f64,
    /// Ranks of a node; consecutive ones share it.
    pub ranks_per_node: usize,
    /// Memory bandwidth of a device, in gigabytes per second; infinite leaves that time out.
    pub memory_bandwidth_gb_per_s: f64,
    /// Startup latency of an operation between ranks, in seconds.
    pub message_seconds: f64,
    /// Bandwidth of a device to host memory, and from it at the same time, in gigabytes per second;
    /// infinite leaves that time out.
    pub host_bandwidth_gb_per_s: f64,
}

/// Number of times that the activations that backward keeps are read or written: forward writes
/// them and reads them again, backward reads them and does the same with their gradients.
const ACTIVATION_PASSES: f64 = 4.0;

impl Rates {
    fn bytes_per_second(&self, is_inside: bool) -> f64 {
        let gigabits = if is_inside { self.intra_link_gbps } else { self.link_gbps };
        bytes_per_second(gigabits)
    }
}

/// Bytes a second of a link of `gigabits` gigabits a second.
pub(crate) fn bytes_per_second(gigabits: f64) -> f64 {
    gigabits * 1e9 / 8.0
}

/// The time of a step, in seconds, on the slowest stage.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Estimate {
    /// All of it.
    pub step_seconds: f64,
    /// Computing.
    pub compute_seconds: f64,
    /// Waiting for tensor-, context- and expert-parallel communication. Messages of a pipeline
    /// overlap with computing.
    pub exposed_seconds: f64,
    /// Waiting in the pipeline's bubble.
    pub bubble_seconds: f64,
    /// Updating parameters: gradients and states are read, states are written, and
    /// `transfer_seconds` is added.
    pub update_seconds: f64,
    /// Time of the update that waits for transfers of gradients and parameters to host memory and
    /// back, if optimizer states are there (`optimizer.optimizer_cpu_offload`). The host's
    /// computation is not counted, because its memory bandwidth is not a property of the device.
    pub transfer_seconds: f64,
    /// Exposed communication of gradients and parameters over replicas, after overlap by
    /// `overlap_grad_reduce` and `overlap_param_gather`.
    pub replica_seconds: f64,
    /// Tokens of all ranks in a second.
    pub tokens_per_second: f64,
    /// The model's FLOPs as a share of the devices' peak.
    pub model_flops_utilization: f64,
}

/// Seconds of one rank of one stage.
#[derive(Clone, Copy, Default)]
struct StageSeconds {
    compute: f64,
    exposed: f64,
    update: f64,
    transfer: f64,
    replicas: f64,
}

/// Estimates a step.
pub(super) fn estimate(
    setup: &Setup<'_>,
    rates: &Rates,
    stages: &[StagePlan],
    pipeline: &Pipeline,
    flops: &Flops,
) -> Estimate {
    let links = Links::new(setup, rates);
    let seconds: Vec<StageSeconds> = stages.iter().map(|stage| of_stage(setup, rates, &links, stage)).collect();
    let busy = |stage: &StageSeconds| stage.compute + stage.exposed;
    let slowest = seconds.iter().copied().max_by(|a, b| busy(a).total_cmp(&busy(b))).unwrap_or_default();
    let replica_seconds = seconds.iter().map(|stage| stage.replicas).fold(0.0, f64::max);
    let update_seconds = seconds.iter().map(|stage| stage.update).fold(0.0, f64::max);
    let transfer_seconds = seconds.iter().map(|stage| stage.transfer).fold(0.0, f64::max);
    let bubble_seconds = busy(&slowest) * pipeline.bubble_fraction / (1.0 - pipeline.bubble_fraction);
    let step_seconds = busy(&slowest) + bubble_seconds + update_seconds + replica_seconds;
    let peak = rates.device_tflops * 1e12 * setup.layout.world_size as f64;
    Estimate {
        step_seconds,
        compute_seconds: slowest.compute,
        exposed_seconds: slowest.exposed,
        bubble_seconds,
        update_seconds,
        transfer_seconds,
        replica_seconds,
        tokens_per_second: setup.batch().tokens as f64 / step_seconds,
        model_flops_utilization: flops.per_step / step_seconds / peak,
    }
}

fn of_stage(setup: &Setup<'_>, rates: &Rates, links: &Links, stage: &StagePlan) -> StageSeconds {
    let microbatches = setup.shape.num_microbatches as f64;
    let memory = rates.memory_bandwidth_gb_per_s * 1e9;
    let products = stage.flops / (rates.device_tflops * rates.device_efficiency * 1e12);
    let kept: u64 = setup.stages[stage.stage].iter().map(|chunk| all_activations(setup, chunk)).sum();
    let compute = products + kept as f64 * microbatches * ACTIVATION_PASSES / memory;
    let states = stage.memory.parameters + stage.memory.optimizer;
    let transfer = transfer_seconds(setup, rates, stage.stage);
    let update = (stage.memory.gradients + 2 * states) as f64 / memory + transfer;
    let mut seconds = StageSeconds { compute, update, transfer, ..StageSeconds::default() };
    // Forward is a third of a micro-batch's time, backward the rest.
    let (forward, backward) = (compute / microbatches / 3.0, compute / microbatches * 2.0 / 3.0);
    let (mut reduction, mut gather) = (0.0, 0.0);
    for traffic in &stage.traffic {
        let begins = traffic.operations as f64 * rates.message_seconds;
        let time = traffic.wire_bytes / links.bytes_per_second(traffic.group) + begins;
        match traffic.kind {
            TrafficKind::Gradients => reduction += time,
            TrafficKind::Parameters => gather += time,
            // Receives are posted early, and sends overlap with computation.
            TrafficKind::Pipeline => {}
            _ => seconds.exposed += time,
        }
    }
    // A reduction or gather of once a step overlaps with one micro-batch; one in each micro-batch
    // overlaps with each of them.
    let hidden = |time: f64, behind: f64, times: f64| (time - behind * times).max(0.0);
    let times = |is_each: bool| if is_each { microbatches } else { 1.0 };
    if setup.config.ddp.overlap_grad_reduce {
        reduction = hidden(reduction, backward, times(setup.sharding().divides_gradients()));
    }
    if setup.config.ddp.overlap_param_gather || setup.config.optimizer.overlap_param_gather {
        gather = hidden(gather, forward, times(setup.sharding() == Sharding::Full));
    }
    seconds.replicas = reduction + gather;
    seconds
}

/// Transfer time of gradients, other inputs of updates in host memory, and the new parameters. Both
/// directions overlap if downloads run ahead of updates.
fn transfer_seconds(setup: &Setup<'_>, rates: &Rates, stage: usize) -> f64 {
    let moved = offloaded(setup, stage).elements as f64;
    let bytes = setup.bytes;
    let seconds = |bytes: u64| moved * bytes as f64 / (rates.host_bandwidth_gb_per_s * 1e9);
    let (down, up) = (seconds(bytes.gradient + bytes.update_reads), seconds(bytes.parameter));
    match setup.optimizer_offload.map(|offload| offload.transfers) {
        Some(TransferTiming::Prefetched) => down.max(up),
        _ => down + up,
    }
}

/// Rate of each group's links: the rate inside a node for groups that never leave theirs.
struct Links {
    world: f64,
    /// Indexed like [`GroupKind::ALL`].
    mesh: Vec<f64>,
    row_copies: f64,
}

impl Links {
    fn new(setup: &Setup<'_>, rates: &Rates) -> Self {
        let node = |rank: usize| rank / rates.ranks_per_node.max(1);
        let is_inside = |group: &[usize]| group.iter().all(|rank| node(*rank) == node(group[0]));
        let of = |kind| rates.bytes_per_second(setup.mesh.groups(kind).iter().all(|group| is_inside(group)));
        let copies = setup.row_copies();
        Self {
            world: rates.bytes_per_second(setup.layout.world_size <= rates.ranks_per_node),
            mesh: GroupKind::ALL.into_iter().map(of).collect(),
            row_copies: rates.bytes_per_second(
                setup.mesh.groups(GroupKind::Tensor).iter().flat_map(|group| group.chunks(copies)).all(is_inside),
            ),
        }
    }

    fn bytes_per_second(&self, group: TrafficGroup) -> f64 {
        match group {
            TrafficGroup::World => self.world,
            TrafficGroup::Mesh(kind) => self.mesh[kind as usize],
            TrafficGroup::RowCopies => self.row_copies,
            // Its ranks may be on any nodes.
            TrafficGroup::Whole(_) => self.world,
        }
    }
}
