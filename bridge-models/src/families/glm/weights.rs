//! Names of the parameters that Llama does not have. One matrix has the rows of the gate, then
//! those of the other half, as ours.

use crate::families::prelude::*;

pub(crate) const GATE_UP: &[WeightRule] = &[layer!("mlp.linear_fc1.weight", "mlp.gate_up_proj.weight")];
