//! Names of the router's bias, a row of a matrix.

use crate::families::prelude::*;

pub(super) const OWN: &[WeightRule] = &[
    layer!("mlp.router.expert_bias", "mlp.moe_statics.e_score_correction_bias").fused(Fusion::Row),
    layer!("mlp.router.expert_bias", "mlp.gate.moe_statics.e_score_correction_bias").fused(Fusion::Row).stacked(),
];
