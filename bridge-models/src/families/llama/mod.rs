//! Llama 1 to 3, SmolLM2, TinyLlama and others. Query, key and value are three matrices there, gate
//! and up two.

pub(super) mod gguf;

use super::prelude::*;
use super::rows::LAYERS;

pub(super) static FAMILY: Family = Family {
    model_type: "llama",
    architecture: "LlamaForCausalLM",
    settings: SETTINGS,
    weights: &[WEIGHTS],
    ..Family::USUAL
};

/// Settings; absent ones have the values of `LlamaConfig`.
const SETTINGS: &[Setting] = &[Setting::Rows(SIZES), HEAD_SIZE, positions(2048), MLP_BIAS, Setting::Rows(LAYERS)];

/// Names of Llama's parameters.
pub(super) const WEIGHTS: &[WeightRule] = &RULES;

/// [`WEIGHTS`] for families whose files have other names than the state of a module.
pub(super) const IN_MODULE: &[WeightRule] = &stacked(RULES);

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
