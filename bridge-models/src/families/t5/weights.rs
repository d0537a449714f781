//! Names of T5's parameters. The first layer of each stack has the bias that all its layers use.

use crate::families::prelude::*;

/// A rule of a layer of the decoder.
macro_rules! decoder {
    ($($name:literal),+ $(,)?) => { prefixed!("decoder.layers.{}.", "decoder.block.{}.layer.", $($name),+) };
}

/// A rule of a layer of the encoder.
macro_rules! encoder {
    ($($name:literal),+ $(,)?) => { prefixed!("encoder.layers.{}.", "encoder.block.{}.layer.", $($name),+) };
}

pub(super) const WEIGHTS: &[WeightRule] = &[
    rule("embedding.word_embeddings.weight", &["shared.weight"])
        .fused(Fusion::Vocabulary)
        .with_optional_aliases(&["encoder.embed_tokens.weight", "decoder.embed_tokens.weight"]),
    rule(
        "encoder.relative_attention_bias.weight",
        &["encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight"],
    ),
    encoder!("input_layernorm.weight", "0.layer_norm.weight"),
    encoder!(
        "self_attention.linear_qkv.weight",
        "0.SelfAttention.q.weight",
        "0.SelfAttention.k.weight",
        "0.SelfAttention.v.weight"
    )
    .fused(Fusion::Qkv),
    encoder!("self_attention.linear_proj.weight", "0.SelfAttention.o.weight"),
    encoder!("pre_mlp_layernorm.weight", "1.layer_norm.weight"),
    encoder!("mlp.linear_fc2.weight", "1.DenseReluDense.wo.weight"),
    rule("encoder.final_layernorm.weight", &["encoder.final_layer_norm.weight"]),
    rule(
        "decoder.relative_attention_bias.weight",
        &["decoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight"],
    ),
    decoder!("input_layernorm.weight", "0.layer_norm.weight"),
    decoder!(
        "self_attention.linear_qkv.weight",
        "0.SelfAttention.q.weight",
        "0.SelfAttention.k.weight",
        "0.SelfAttention.v.weight"
    )
    .fused(Fusion::Qkv),
    decoder!("self_attention.linear_proj.weight", "0.SelfAttention.o.weight"),
    decoder!("pre_cross_attn_layernorm.weight", "1.layer_norm.weight"),
    decoder!("cross_attention.linear_q.weight", "1.EncDecAttention.q.weight"),
    decoder!("cross_attention.linear_kv.weight", "1.EncDecAttention.k.weight", "1.EncDecAttention.v.weight")
        .fused(Fusion::GateUp),
    decoder!("cross_attention.linear_proj.weight", "1.EncDecAttention.o.weight"),
    decoder!("pre_mlp_layernorm.weight", "2.layer_norm.weight"),
    decoder!("mlp.linear_fc2.weight", "2.DenseReluDense.wo.weight"),
    rule("decoder.final_layernorm.weight", &["decoder.final_layer_norm.weight"]),
    rule("output_layer.weight", &["lm_head.weight"]).fused(Fusion::Vocabulary),
    // The first feed-forward matrix: one, or two of a gated unit.
    encoder!("mlp.linear_fc1.weight", "1.DenseReluDense.wi.weight").only(|c| !c.gated_linear_unit),
    decoder!("mlp.linear_fc1.weight", "2.DenseReluDense.wi.weight").only(|c| !c.gated_linear_unit),
    encoder!("mlp.linear_fc1.weight", "1.DenseReluDense.wi_0.weight", "1.DenseReluDense.wi_1.weight")
        .fused(Fusion::GateUp)
        .only(|c| c.gated_linear_unit),
    decoder!("mlp.linear_fc1.weight", "2.DenseReluDense.wi_0.weight", "2.DenseReluDense.wi_1.weight")
        .fused(Fusion::GateUp)
        .only(|c| c.gated_linear_unit),
];
