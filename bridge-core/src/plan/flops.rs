//! Floating-point operations of a step, over all ranks.

use serde::Serialize;

use super::setup::Setup;
use super::stage::StagePlan;

/// Floating-point operations, forward and backward.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Flops {
    /// FLOPs of a step, by the model alone (the reference of MFU).
    pub per_step: f64,
    /// FLOPs of a token.
    pub per_token: f64,
    /// FLOPs of a step, with the forwards that recompute repeats.
    pub per_step_with_recompute: f64,
}

/// Counts them.
pub(super) fn flops(setup: &Setup<'_>, stages: &[StagePlan]) -> Flops {
    let batch = setup.batch();
    let costs = setup.stages.iter().flatten().flat_map(|chunk| &chunk.costs);
    let per_micro_batch: f64 = costs.map(|cost| cost.flops).sum();
    let per_step = per_micro_batch * (batch.num_microbatches * setup.layout.data as u64) as f64;
    let ranks_of_a_stage = (setup.layout.world_size / setup.layout.pipeline) as f64;
    Flops {
        per_step,
        per_token: per_step / batch.tokens as f64,
        per_step_with_recompute: stages.iter().map(|stage| stage.flops).sum::<f64>() * ranks_of_a_stage,
    }
}
