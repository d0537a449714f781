//! Names of Llama's parameters.

use crate::families::prelude::*;

pub(crate) const WEIGHTS: &[WeightRule] = &RULES;

/// [`WEIGHTS`] for families whose files have other names than the state of a module.
pub(crate) const IN_MODULE: &[WeightRule] = &stacked(RULES);

const RULES: [WeightRule; 13] = [
    rule("embedding.word_embeddings.weight", &["model.embed_tokens.weight"]).fused(Fusion::Vocabulary),
    layer!("input_layernorm.weight", "input_layernorm.weight"),
    layer!(
        "self_attention.linear_qkv.weight",
        "self_attn.q_proj.weight",
        "self_attn.k_proj.weight",
        "self_attn.v_proj.weight"
    )
    .fused(Fusion::Qkv),
    layer!("self_attention.linear_qkv.bias", "self_attn.q_proj.bias", "self_attn.k_proj.bias", "self_attn.v_proj.bias")
        .fused(Fusion::Qkv),
    layer!("self_attention.linear_proj.weight", "self_attn.o_proj.weight"),
    layer!("self_attention.linear_proj.bias", "self_attn.o_proj.bias"),
    layer!("pre_mlp_layernorm.weight", "post_attention_layernorm.weight"),
    layer!("mlp.linear_fc1.weight", "mlp.gate_proj.weight", "mlp.up_proj.weight").fused(Fusion::GateUp),
    layer!("mlp.linear_fc1.bias", "mlp.gate_proj.bias", "mlp.up_proj.bias").fused(Fusion::GateUp),
    layer!("mlp.linear_fc2.weight", "mlp.down_proj.weight"),
    layer!("mlp.linear_fc2.bias", "mlp.down_proj.bias"),
    rule("decoder.final_layernorm.weight", &["model.norm.weight"]),
    rule("output_layer.weight", &["lm_head.weight"]).fused(Fusion::Vocabulary),
];
