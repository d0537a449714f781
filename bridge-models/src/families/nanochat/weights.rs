//! Names of the feed-forward block.

use crate::huggingface::weight_map::{WeightRule, rule};

pub(super) const OWN: &[WeightRule] = &[
    rule("decoder.layers.{}.mlp.linear_fc1.weight", &["model.layers.{}.mlp.fc1.weight"]),
    rule("decoder.layers.{}.mlp.linear_fc2.weight", &["model.layers.{}.mlp.fc2.weight"]),
];
