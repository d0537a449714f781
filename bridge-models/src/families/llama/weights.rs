//! Names of Llama's parameters.

use crate::huggingface::weight_map::{Fusion, WeightRule, rule, stacked};

pub(crate) const WEIGHTS: &[WeightRule] = &RULES;

/// [`WEIGHTS`] for families whose files have other names than the state of a module.
pub(crate) const IN_MODULE: &[WeightRule] = &stacked(RULES);

const RULES: [WeightRule; 13] = [
    rule("embedding.word_embeddings.weight", &["model.embed_tokens.weight"]).fused(Fusion::Vocabulary),
    rule("decoder.layers.{}.input_layernorm.weight", &["model.layers.{}.input_layernorm.weight"]),
    rule(
        "decoder.layers.{}.self_attention.linear_qkv.weight",
        &[
            "model.layers.{}.self_attn.q_proj.weight",
            "model.layers.{}.self_attn.k_proj.weight",
            "model.layers.{}.self_attn.v_proj.weight",
        ],
    )
    .fused(Fusion::Qkv),
    rule(
        "decoder.layers.{}.self_attention.linear_qkv.bias",
        &[
            "model.layers.{}.self_attn.q_proj.bias",
            "model.layers.{}.self_attn.k_proj.bias",
            "model.layers.{}.self_attn.v_proj.bias",
        ],
    )
    .fused(Fusion::Qkv),
    rule("decoder.layers.{}.self_attention.linear_proj.weight", &["model.layers.{}.self_attn.o_proj.weight"]),
    rule("decoder.layers.{}.self_attention.linear_proj.bias", &["model.layers.{}.self_attn.o_proj.bias"]),
    rule("decoder.layers.{}.pre_mlp_layernorm.weight", &["model.layers.{}.post_attention_layernorm.weight"]),
    rule(
        "decoder.layers.{}.mlp.linear_fc1.weight",
        &["model.layers.{}.mlp.gate_proj.weight", "model.layers.{}.mlp.up_proj.weight"],
    )
    .fused(Fusion::GateUp),
    rule(
        "decoder.layers.{}.mlp.linear_fc1.bias",
        &["model.layers.{}.mlp.gate_proj.bias", "model.layers.{}.mlp.up_proj.bias"],
    )
    .fused(Fusion::GateUp),
    rule("decoder.layers.{}.mlp.linear_fc2.weight", &["model.layers.{}.mlp.down_proj.weight"]),
    rule("decoder.layers.{}.mlp.linear_fc2.bias", &["model.layers.{}.mlp.down_proj.bias"]),
    rule("decoder.final_layernorm.weight", &["model.norm.weight"]),
    rule("output_layer.weight", &["lm_head.weight"]).fused(Fusion::Vocabulary),
];
