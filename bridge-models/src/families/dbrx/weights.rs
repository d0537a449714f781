//! Names of DBRX's parameters. The matrices of all experts of a layer are one below the other.

use crate::families::prelude::*;

/// A rule of a layer.
macro_rules! block {
    ($($name:literal),+ $(,)?) => { prefixed!("decoder.layers.{}.", "transformer.blocks.{}.", $($name),+) };
}

pub(super) const WEIGHTS: &[WeightRule] = &[
    rule("embedding.word_embeddings.weight", &["transformer.wte.weight"]).fused(Fusion::Vocabulary),
    block!("input_layernorm.weight", "norm_attn_norm.norm_1.weight"),
    block!("self_attention.linear_qkv.weight", "norm_attn_norm.attn.Wqkv.weight").fused(Fusion::PackedQkv),
    block!("self_attention.linear_proj.weight", "norm_attn_norm.attn.out_proj.weight"),
    block!("pre_mlp_layernorm.weight", "norm_attn_norm.norm_2.weight"),
    block!("mlp.router.weight", "ffn.router.layer.weight"),
    block!("mlp.experts.local_experts.{}.linear_fc1.weight", "ffn.experts.mlp.w1", "ffn.experts.mlp.v1")
        .fused(Fusion::GateUp)
        .joined(),
    block!("mlp.experts.local_experts.{}.linear_fc2.weight", "ffn.experts.mlp.w2").rows_are_inputs().joined(),
    rule("decoder.final_layernorm.weight", &["transformer.norm_f.weight"]),
    rule("output_layer.weight", &["lm_head.weight"]).fused(Fusion::Vocabulary),
];
