//! Names of the parameters that Llama does not have.

use crate::huggingface::weight_map::{WeightRule, rule};

pub(super) const OWN: &[WeightRule] = &[
    rule("decoder.layers.{}.mlp.linear_fc1.weight", &["model.layers.{}.mlp.c_fc.weight"]),
    rule("decoder.layers.{}.mlp.linear_fc1.bias", &["model.layers.{}.mlp.c_fc.bias"]),
    rule("decoder.layers.{}.mlp.linear_fc2.weight", &["model.layers.{}.mlp.c_proj.weight"]),
    rule("decoder.layers.{}.mlp.linear_fc2.bias", &["model.layers.{}.mlp.c_proj.bias"]),
];

/// Biases of norms.
pub(crate) const NORM_BIASES: &[WeightRule] = &[
    rule("decoder.layers.{}.input_layernorm.bias", &["model.layers.{}.input_layernorm.bias"]),
    rule("decoder.layers.{}.pre_mlp_layernorm.bias", &["model.layers.{}.post_attention_layernorm.bias"]),
    rule("decoder.final_layernorm.bias", &["model.norm.bias"]),
];
