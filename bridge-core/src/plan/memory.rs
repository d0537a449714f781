//! Bytes that a rank of a stage holds, by what they are for.

use bridge_dist::schedule::ScheduleKind;
use serde::Serialize;

use super::segments::{activations as of_chunk, chunk_regions};
use super::setup::{Chunk, Setup};
use crate::model::{ReplicaGroup, SegmentCost};
use crate::optim::{Gather, Sharding};

/// Memory of a rank, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Memory {
    /// Parameters in the dtype they are used in.
    pub parameters: u64,
    /// Gradients summed over micro-batches.
    pub gradients: u64,
    /// Moments, and float32 copies of narrower parameters.
    pub optimizer: u64,
    /// Activations kept from forward to backward, of all micro-batches in flight.
    pub activations: u64,
    /// Activations that recompute brings back: those of its largest region.
    pub recompute: u64,
    /// What one backward has in hand: gradients of activations, and of the parameters of the largest region before they are added to
    /// the sums.
    pub backward: u64,
    /// Whole parameters gathered for one region, and for the next if `ddp.overlap_param_gather` is on, where parameters are sharded.
    pub gathered: u64,
    /// Logits of the loss that exist at once.
    pub cross_entropy: u64,
    /// Scores of attention that exist at once, on `train.num_threads` threads (one if that is not set).
    pub attention: u64,
    /// All of the above.
    pub total: u64,
}

impl Memory {
    fn sum(&self) -> u64 {
        let kept = self.parameters + self.gradients + self.optimizer + self.activations + self.recompute;
        kept + self.backward + self.gathered + self.cross_entropy + self.attention
    }
}

/// The memory of a rank of a stage, whose kept activations reach `activations` bytes.
pub(super) fn of_stage(setup: &Setup<'_>, stage: usize, activations: u64) -> Memory {
    let chunks = &setup.stages[stage];
    let bytes = setup.bytes;
    let share = |is_sharded: bool, size: u64| sharded(setup, stage, is_sharded) * size;
    let sharding = setup.sharding();
    let is_full = sharding == Sharding::Full;
    // Put-off gradients of weights come at once, and are reduced after that.
    let comes_at_once = sharding.divides_gradients() && setup.schedule == ScheduleKind::ZeroBubbleH1;
    let put_off = if comes_at_once { share(false, bytes.gradient) } else { 0 };
    let recompute = chunks.iter().map(|chunk| of_chunk(setup, chunk).recomputed).max().unwrap_or(0);
    let most =
        |bytes: fn(&SegmentCost) -> u64| chunks.iter().flat_map(|chunk| &chunk.costs).map(bytes).max().unwrap_or(0);
    let threads = setup.config.train.num_threads.unwrap_or(1) as u64;
    let mut memory = Memory {
        parameters: share(is_full, bytes.parameter),
        gradients: share(sharding.divides_gradients(), bytes.gradient) + put_off,
        optimizer: share(sharding.divides_state(), bytes.optimizer),
        activations,
        recompute,
        backward: most(|cost| cost.backward) + fresh_gradients(setup, stage),
        gathered: if is_full { gathered(setup, stage) } else { 0 },
        cross_entropy: most(|cost| cost.cross_entropy),
        attention: threads * most(|cost| cost.attention),
        total: 0,
    };
    memory.total = memory.sum();
    memory
}

/// Elements of the parameters of a rank: all, or its share among the replicas.
fn sharded(setup: &Setup<'_>, stage: usize, is_sharded: bool) -> u64 {
    let of = |replicas| {
        let ranks = if is_sharded { setup.shards().of(replicas) as u64 } else { 1 };
        let parameters = setup.parameters(stage).filter(|p| p.placement.replicas == replicas);
        parameters.map(|p| p.num_elements() as u64).sum::<u64>().div_ceil(ranks)
    };
    of(ReplicaGroup::Dense) + of(ReplicaGroup::Expert)
}

/// Parameters of each region of a chunk, in elements.
fn region_sizes(setup: &Setup<'_>, chunk: &Chunk) -> Vec<u64> {
    let mut sizes = vec![0; chunk.costs.len()];
    for parameter in chunk.declarations.parameters() {
        sizes[parameter.segments[0]] += parameter.num_elements() as u64;
    }
    chunk_regions(setup, chunk).into_iter().map(|region| sizes[region.segments].iter().sum()).collect()
}

/// Gradients that one backward makes before they are added to the sums, or reduced.
fn fresh_gradients(setup: &Setup<'_>, stage: usize) -> u64 {
    let bytes = setup.bytes;
    let each = if setup.sharding().divides_gradients() { bytes.parameter.max(bytes.gradient) } else { bytes.parameter };
    setup.stages[stage].iter().flat_map(|chunk| region_sizes(setup, chunk)).max().unwrap_or(0) * each
}

/// The largest region and, where that is gathered meanwhile, its neighbour.
fn gathered(setup: &Setup<'_>, stage: usize) -> u64 {
    let at_once = if setup.distribution.gather == Gather::DuringForward { 2 } else { 1 };
    let most = |sizes: Vec<u64>| {
        let windows = sizes.windows(at_once.min(sizes.len().max(1)));
        windows.map(|regions| regions.iter().sum()).max().unwrap_or(0)
    };
    let sizes = setup.stages[stage].iter().map(|chunk| most(region_sizes(setup, chunk)));
    sizes.max().unwrap_or(0_u64) * setup.bytes.parameter
}
