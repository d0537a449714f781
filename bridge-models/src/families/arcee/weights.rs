//! Names of a feed-forward block without a gate.

use crate::huggingface::weight_map::{WeightRule, rule};

pub(crate) const UP: &[WeightRule] = &[
    rule("decoder.layers.{}.mlp.linear_fc1.weight", &["model.layers.{}.mlp.up_proj.weight"]),
    rule("decoder.layers.{}.mlp.linear_fc1.bias", &["model.layers.{}.mlp.up_proj.bias"]),
];
