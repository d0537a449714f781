//! Activations that are moved to the host between forward and backward: a pure plan, and the memory
//! that it frees.

use super::recompute::Region;
use super::setup::{Chunk, Setup};
use crate::model::Segment;

/// Activations that are moved: Megatron's `cpu_offloading` and
/// `fine_grained_activation_offloading`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Offload {
    /// No activations.
    #[default]
    Nothing,
    /// Tensors of 2^20 elements or more that the first layers keep.
    Layers(usize),
    /// Tensors that the modules of these names keep in each layer.
    Modules(Vec<String>),
}

/// Elements of the smallest tensor that moves with its layer: of a smaller one the transfer costs
/// more than the memory is worth.
pub const LEAST_ELEMENTS: usize = 1 << 20;

impl Offload {
    /// True if the offload applies to a segment.
    pub fn includes(&self, segment: &Segment) -> bool {
        match self {
            Self::Nothing => false,
            Self::Layers(count) => segment.layer.is_some_and(|layer| layer < *count),
            Self::Modules(_) => segment.layer.is_some(),
        }
    }
}

/// Bytes that segment `index` of a chunk keeps from forward to backward, with its input: on the
/// device, and on the host.
///
/// The input of the region that begins with the segment is a leaf of its graph, so it stays. With
/// layers, each tensor counts with the size of the residual stream.
pub(super) fn kept(setup: &Setup<'_>, chunk: &Chunk, index: usize, region: &Region) -> (u64, u64) {
    let cost = &chunk.costs[index];
    let input = cost.input * setup.bytes.stream;
    let all = input + cost.kept;
    let segment = &chunk.declarations.segments()[index];
    if region.recomputed || !setup.activation_offload.includes(segment) {
        return (all, 0);
    }
    let is_leaf = index == region.segments.start;
    let stays = cost.unmoved + if is_leaf { input } else { 0 };
    let moved = match &setup.activation_offload {
        Offload::Nothing => 0,
        Offload::Layers(_) if cost.input < LEAST_ELEMENTS as u64 => 0,
        Offload::Layers(_) => all.saturating_sub(stays),
        Offload::Modules(modules) => {
            let is_moved = |module: &str| {
                let reads_input = matches!(module, "attn_norm" | "mlp_norm");
                modules.iter().any(|name| name == module) && !(is_leaf && reads_input)
            };
            cost.modules.iter().filter(|(module, _)| is_moved(module)).map(|(_, bytes)| bytes).sum()
        }
    };
    let moved = moved.min(all);
    (all - moved, moved)
}
