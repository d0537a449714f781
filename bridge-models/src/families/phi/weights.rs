//! Names of the parameters that Llama does not have, or names otherwise.

use crate::families::prelude::*;

pub(super) const OWN: &[WeightRule] = &[
    layer!("input_layernorm.bias", "input_layernorm.bias"),
    layer!("self_attention.q_layernorm.weight", "self_attn.q_layernorm.weight"),
    layer!("self_attention.q_layernorm.bias", "self_attn.q_layernorm.bias"),
    layer!("self_attention.k_layernorm.weight", "self_attn.k_layernorm.weight"),
    layer!("self_attention.k_layernorm.bias", "self_attn.k_layernorm.bias"),
    layer!("self_attention.linear_proj.weight", "self_attn.dense.weight"),
    layer!("self_attention.linear_proj.bias", "self_attn.dense.bias"),
    layer!("mlp.linear_fc1.weight", "mlp.fc1.weight"),
    layer!("mlp.linear_fc1.bias", "mlp.fc1.bias"),
    layer!("mlp.linear_fc2.weight", "mlp.fc2.weight"),
    layer!("mlp.linear_fc2.bias", "mlp.fc2.bias"),
    rule("decoder.final_layernorm.weight", &["model.final_layernorm.weight"]),
    rule("decoder.final_layernorm.bias", &["model.final_layernorm.bias"]),
];

/// The bias of the output projection.
pub(crate) const OUTPUT_BIAS: &[WeightRule] = &[rule("output_layer.bias", &["lm_head.bias"]).fused(Fusion::Vocabulary)];
