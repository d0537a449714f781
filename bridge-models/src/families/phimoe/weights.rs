//! Names of the parameters that Mixtral does not have, or names otherwise.

use crate::huggingface::weight_map::{WeightRule, rule};

pub(super) const OWN: &[WeightRule] = &[
    rule("decoder.layers.{}.mlp.router.weight", &["model.layers.{}.mlp.router.weight"]).stacked(),
    rule("decoder.layers.{}.input_layernorm.bias", &["model.layers.{}.input_layernorm.bias"]),
    rule("decoder.layers.{}.pre_mlp_layernorm.bias", &["model.layers.{}.post_attention_layernorm.bias"]),
    rule("decoder.final_layernorm.bias", &["model.norm.bias"]),
];
