//! Names of a feed-forward block without a gate.

use crate::families::prelude::*;

pub(crate) const UP: &[WeightRule] =
    &[layer!("mlp.linear_fc1.weight", "mlp.up_proj.weight"), layer!("mlp.linear_fc1.bias", "mlp.up_proj.bias")];
