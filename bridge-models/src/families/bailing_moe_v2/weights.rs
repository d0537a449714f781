//! Name of the last norm of a layer of multi-token prediction.

use crate::families::prelude::*;

pub(super) const NORMS: &[WeightRule] =
    &[rule("mtp.layers.{}.final_layernorm.weight", &["model.layers.{}.final_layernorm.weight"])];
