//! The segments of chunks: their regions with recompute, their FLOPs, and the bytes kept for
//! backward.

use super::offload::kept;
use super::recompute::{Region, split_into_regions};
use super::settings;
use super::setup::{Chunk, Setup};

/// Bytes that a chunk keeps of one micro-batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ChunkActivations {
    /// Bytes kept from forward to backward.
    pub kept: u64,
    /// Bytes that recomputing a region, or a part of a segment, brings back for the time of its
    /// backward: the largest one.
    pub recomputed: u64,
    /// Bytes kept from the input part of a split backward to the weight part.
    pub deferred: u64,
    /// Kept on the host instead.
    pub moved: u64,
    /// Bytes of these that are on the device again at once in backward: a segment's, and those of
    /// the one before it, which is brought back ahead.
    pub returned: u64,
}

/// The regions of a chunk. At the end of the model, if backward comes next, the last region's graph
/// is kept even with recompute.
pub(super) fn chunk_regions(setup: &Setup<'_>, chunk: &Chunk) -> Vec<Region> {
    let cut = split_into_regions(chunk.declarations.segments(), &setup.recompute, settings::cuts(setup.config));
    let kept = cut.len().checked_sub(1).filter(|_| chunk.content.loss && setup.schedule.backward_follows_loss());
    let numbered = cut.into_iter().enumerate();
    numbered.map(|(index, region)| Region { recomputed: region.recomputed && Some(index) != kept, ..region }).collect()
}

/// Activations that a chunk keeps.
pub(super) fn activations(setup: &Setup<'_>, chunk: &Chunk) -> ChunkActivations {
    let mut activations = ChunkActivations::default();
    for region in chunk_regions(setup, chunk) {
        let costs = &chunk.costs[region.segments.clone()];
        let bytes = |elements: u64| elements * setup.bytes.stream;
        let input = costs.first().map_or(0, |cost| bytes(cost.input));
        let all: u64 = costs.iter().map(|cost| bytes(cost.input) + cost.kept).sum();
        let moved: Vec<u64> = region.segments.clone().map(|index| kept(setup, chunk, index, &region).1).collect();
        activations.moved += moved.iter().sum::<u64>();
        activations.returned = activations.returned.max(largest_pair(&moved));
        activations.deferred += costs.iter().map(|cost| cost.deferred).sum::<u64>();
        let in_segments = costs.iter().map(|cost| cost.brought_back).max().unwrap_or(0);
        let again = if region.recomputed { all - input } else { 0 };
        activations.kept += all - again - moved.iter().sum::<u64>();
        activations.recomputed = activations.recomputed.max(again + in_segments);
    }
    activations
}

/// The largest sum of two neighbours.
fn largest_pair(bytes: &[u64]) -> u64 {
    let pairs = bytes.windows(2).map(|pair| pair.iter().sum());
    pairs.chain(bytes.first().copied()).max().unwrap_or(0)
}

/// Bytes that the largest recomputed region of a stage brings back.
pub(super) fn recomputed(setup: &Setup<'_>, stage: usize) -> u64 {
    setup.stages[stage].iter().map(|chunk| activations(setup, chunk).recomputed).max().unwrap_or(0)
}

/// Bytes of all activations of a chunk and a micro-batch, kept or recomputed.
pub(super) fn all_activations(setup: &Setup<'_>, chunk: &Chunk) -> u64 {
    chunk.costs.iter().map(|cost| cost.input * setup.bytes.stream + cost.kept).sum()
}

/// FLOPs of a rank of a stage in a step, the forwards that recompute repeats included.
pub(super) fn stage_flops(setup: &Setup<'_>, stage: usize) -> f64 {
    let mut total = 0.0;
    for chunk in &setup.stages[stage] {
        for region in chunk_regions(setup, chunk) {
            for cost in &chunk.costs[region.segments] {
                // Backward costs twice as much as forward if all parameters are trained.
                let forward = (cost.flops + cost.skipped_flops) / 3.0;
                total += cost.flops + cost.recomputed_flops + if region.recomputed { forward } else { 0.0 };
            }
        }
    }
    let shared_by = (setup.layout.tensor * setup.layout.context) as f64;
    total * setup.shape.num_microbatches as f64 / shared_by
}
