//! Name of the bias in the choice of experts in files.

use crate::huggingface::weight_map::{WeightRule, rule};

pub(super) const BIAS: &[WeightRule] =
    &[rule("decoder.layers.{}.mlp.router.expert_bias", &["model.layers.{}.mlp.e_score_correction_bias"])];
