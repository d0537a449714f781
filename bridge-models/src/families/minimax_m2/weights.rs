//! Names of the bias in the choice of experts, in files and in the state of a module.

use crate::families::prelude::*;

pub(super) const BIAS: &[WeightRule] = &[
    layer!("mlp.router.expert_bias", "block_sparse_moe.e_score_correction_bias"),
    layer!("mlp.router.expert_bias", "mlp.e_score_correction_bias").stacked(),
];
