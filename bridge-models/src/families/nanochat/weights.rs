//! Names of the feed-forward block.

use crate::families::prelude::*;

pub(super) const OWN: &[WeightRule] =
    &[layer!("mlp.linear_fc1.weight", "mlp.fc1.weight"), layer!("mlp.linear_fc2.weight", "mlp.fc2.weight")];
