//! Names of T5's parameters. The first layer of each stack has the bias that all its layers use.

use crate::families::prelude::*;

pub(super) const WEIGHTS: &[WeightRule] = &[
    rule("embedding.word_embeddings.weight", &["shared.weight"])
        .fused(Fusion::Vocabulary)
        .with_optional_aliases(&["encoder.embed_tokens.weight", "decoder.embed_tokens.weight"]),
    rule(
        "encoder.relative_attention_bias.weight",
        &["encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight"],
    ),
    rule("encoder.layers.{}.input_layernorm.weight", &["encoder.block.{}.layer.0.layer_norm.weight"]),
    rule(
        "encoder.layers.{}.self_attention.linear_qkv.weight",
        &[
            "encoder.block.{}.layer.0.SelfAttention.q.weight",
            "encoder.block.{}.layer.0.SelfAttention.k.weight",
            "encoder.block.{}.layer.0.SelfAttention.v.weight",
        ],
    )
    .fused(Fusion::Qkv),
    rule("encoder.layers.{}.self_attention.linear_proj.weight", &["encoder.block.{}.layer.0.SelfAttention.o.weight"]),
    rule("encoder.layers.{}.pre_mlp_layernorm.weight", &["encoder.block.{}.layer.1.layer_norm.weight"]),
    rule("encoder.layers.{}.mlp.linear_fc2.weight", &["encoder.block.{}.layer.1.DenseReluDense.wo.weight"]),
    rule("encoder.final_layernorm.weight", &["encoder.final_layer_norm.weight"]),
    rule(
        "decoder.relative_attention_bias.weight",
        &["decoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight"],
    ),
    rule("decoder.layers.{}.input_layernorm.weight", &["decoder.block.{}.layer.0.layer_norm.weight"]),
    rule(
        "decoder.layers.{}.self_attention.linear_qkv.weight",
        &[
            "decoder.block.{}.layer.0.SelfAttention.q.weight",
            "decoder.block.{}.layer.0.SelfAttention.k.weight",
            "decoder.block.{}.layer.0.SelfAttention.v.weight",
        ],
    )
    .fused(Fusion::Qkv),
    rule("decoder.layers.{}.self_attention.linear_proj.weight", &["decoder.block.{}.layer.0.SelfAttention.o.weight"]),
    rule("decoder.layers.{}.pre_cross_attn_layernorm.weight", &["decoder.block.{}.layer.1.layer_norm.weight"]),
    rule("decoder.layers.{}.cross_attention.linear_q.weight", &["decoder.block.{}.layer.1.EncDecAttention.q.weight"]),
    rule(
        "decoder.layers.{}.cross_attention.linear_kv.weight",
        &["decoder.block.{}.layer.1.EncDecAttention.k.weight", "decoder.block.{}.layer.1.EncDecAttention.v.weight"],
    )
    .fused(Fusion::GateUp),
    rule(
        "decoder.layers.{}.cross_attention.linear_proj.weight",
        &["decoder.block.{}.layer.1.EncDecAttention.o.weight"],
    ),
    rule("decoder.layers.{}.pre_mlp_layernorm.weight", &["decoder.block.{}.layer.2.layer_norm.weight"]),
    rule("decoder.layers.{}.mlp.linear_fc2.weight", &["decoder.block.{}.layer.2.DenseReluDense.wo.weight"]),
    rule("decoder.final_layernorm.weight", &["decoder.final_layer_norm.weight"]),
    rule("output_layer.weight", &["lm_head.weight"]).fused(Fusion::Vocabulary),
    // The first feed-forward matrix: one, or two of a gated unit.
    rule("encoder.layers.{}.mlp.linear_fc1.weight", &["encoder.block.{}.layer.1.DenseReluDense.wi.weight"])
        .only(|c| !c.gated_linear_unit),
    rule("decoder.layers.{}.mlp.linear_fc1.weight", &["decoder.block.{}.layer.2.DenseReluDense.wi.weight"])
        .only(|c| !c.gated_linear_unit),
    rule(
        "encoder.layers.{}.mlp.linear_fc1.weight",
        &["encoder.block.{}.layer.1.DenseReluDense.wi_0.weight", "encoder.block.{}.layer.1.DenseReluDense.wi_1.weight"],
    )
    .fused(Fusion::GateUp)
    .only(|c| c.gated_linear_unit),
    rule(
        "decoder.layers.{}.mlp.linear_fc1.weight",
        &["decoder.block.{}.layer.2.DenseReluDense.wi_0.weight", "decoder.block.{}.layer.2.DenseReluDense.wi_1.weight"],
    )
    .fused(Fusion::GateUp)
    .only(|c| c.gated_linear_unit),
];
