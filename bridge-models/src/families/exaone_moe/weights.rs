//! Name of the bias in the choice of experts in files.

use crate::families::prelude::*;

pub(super) const BIAS: &[WeightRule] = &[layer!("mlp.router.expert_bias", "mlp.e_score_correction_bias")];
