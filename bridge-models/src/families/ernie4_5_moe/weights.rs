//! Names of the router's bias, a row of a matrix.

use crate::huggingface::weight_map::{Fusion, WeightRule, rule};

pub(super) const OWN: &[WeightRule] = &[
    rule("decoder.layers.{}.mlp.router.expert_bias", &["model.layers.{}.mlp.moe_statics.e_score_correction_bias"])
        .fused(Fusion::Row),
    rule("decoder.layers.{}.mlp.router.expert_bias", &["model.layers.{}.mlp.gate.moe_statics.e_score_correction_bias"])
        .fused(Fusion::Row)
        .stacked(),
];
