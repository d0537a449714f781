//! Names of DBRX's parameters. The matrices of all experts of a layer are one below the other.

use crate::families::prelude::*;

pub(super) const WEIGHTS: &[WeightRule] = &[
    rule("embedding.word_embeddings.weight", &["transformer.wte.weight"]).fused(Fusion::Vocabulary),
    rule("decoder.layers.{}.input_layernorm.weight", &["transformer.blocks.{}.norm_attn_norm.norm_1.weight"]),
    rule(
        "decoder.layers.{}.self_attention.linear_qkv.weight",
        &["transformer.blocks.{}.norm_attn_norm.attn.Wqkv.weight"],
    )
    .fused(Fusion::PackedQkv),
    rule(
        "decoder.layers.{}.self_attention.linear_proj.weight",
        &["transformer.blocks.{}.norm_attn_norm.attn.out_proj.weight"],
    ),
    rule("decoder.layers.{}.pre_mlp_layernorm.weight", &["transformer.blocks.{}.norm_attn_norm.norm_2.weight"]),
    rule("decoder.layers.{}.mlp.router.weight", &["transformer.blocks.{}.ffn.router.layer.weight"]),
    rule(
        "decoder.layers.{}.mlp.experts.local_experts.{}.linear_fc1.weight",
        &["transformer.blocks.{}.ffn.experts.mlp.w1", "transformer.blocks.{}.ffn.experts.mlp.v1"],
    )
    .fused(Fusion::GateUp)
    .joined(),
    rule(
        "decoder.layers.{}.mlp.experts.local_experts.{}.linear_fc2.weight",
        &["transformer.blocks.{}.ffn.experts.mlp.w2"],
    )
    .rows_are_inputs()
    .joined(),
    rule("decoder.final_layernorm.weight", &["transformer.norm_f.weight"]),
    rule("output_layer.weight", &["lm_head.weight"]).fused(Fusion::Vocabulary),
];
