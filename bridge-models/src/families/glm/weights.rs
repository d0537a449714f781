//! Names of the parameters that Llama does not have. One matrix has the rows of the gate, then
//! those of the other half, as ours.

use crate::huggingface::weight_map::{WeightRule, rule};

pub(crate) const GATE_UP: &[WeightRule] =
    &[rule("decoder.layers.{}.mlp.linear_fc1.weight", &["model.layers.{}.mlp.gate_up_proj.weight"])];
