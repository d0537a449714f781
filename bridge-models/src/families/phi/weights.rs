//! Names of the parameters that Llama does not have, or names otherwise.

use crate::huggingface::weight_map::{Fusion, WeightRule, rule};

pub(super) const OWN: &[WeightRule] = &[
    rule("decoder.layers.{}.input_layernorm.bias", &["model.layers.{}.input_layernorm.bias"]),
    rule("decoder.layers.{}.self_attention.q_layernorm.weight", &["model.layers.{}.self_attn.q_layernorm.weight"]),
    rule("decoder.layers.{}.self_attention.q_layernorm.bias", &["model.layers.{}.self_attn.q_layernorm.bias"]),
    rule("decoder.layers.{}.self_attention.k_layernorm.weight", &["model.layers.{}.self_attn.k_layernorm.weight"]),
    rule("decoder.layers.{}.self_attention.k_layernorm.bias", &["model.layers.{}.self_attn.k_layernorm.bias"]),
    rule("decoder.layers.{}.self_attention.linear_proj.weight", &["model.layers.{}.self_attn.dense.weight"]),
    rule("decoder.layers.{}.self_attention.linear_proj.bias", &["model.layers.{}.self_attn.dense.bias"]),
    rule("decoder.layers.{}.mlp.linear_fc1.weight", &["model.layers.{}.mlp.fc1.weight"]),
    rule("decoder.layers.{}.mlp.linear_fc1.bias", &["model.layers.{}.mlp.fc1.bias"]),
    rule("decoder.layers.{}.mlp.linear_fc2.weight", &["model.layers.{}.mlp.fc2.weight"]),
    rule("decoder.layers.{}.mlp.linear_fc2.bias", &["model.layers.{}.mlp.fc2.bias"]),
    rule("decoder.final_layernorm.weight", &["model.final_layernorm.weight"]),
    rule("decoder.final_layernorm.bias", &["model.final_layernorm.bias"]),
];

/// The bias of the output projection.
pub(crate) const OUTPUT_BIAS: &[WeightRule] = &[rule("output_layer.bias", &["lm_head.bias"]).fused(Fusion::Vocabulary)];
