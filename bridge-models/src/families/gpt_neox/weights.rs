//! Names of GPT-NeoX's parameters. Rows of queries, keys and values are ordered by head, as in
//! Bridge.

use crate::families::prelude::*;

pub(super) const WEIGHTS: &[WeightRule] = &[
    rule("embedding.word_embeddings.weight", &["gpt_neox.embed_in.weight"]).fused(Fusion::Vocabulary),
    rule("decoder.layers.{}.input_layernorm.weight", &["gpt_neox.layers.{}.input_layernorm.weight"]),
    rule("decoder.layers.{}.input_layernorm.bias", &["gpt_neox.layers.{}.input_layernorm.bias"]),
    rule(
        "decoder.layers.{}.self_attention.linear_qkv.weight",
        &["gpt_neox.layers.{}.attention.query_key_value.weight"],
    ),
    rule("decoder.layers.{}.self_attention.linear_qkv.bias", &["gpt_neox.layers.{}.attention.query_key_value.bias"]),
    rule("decoder.layers.{}.self_attention.linear_proj.weight", &["gpt_neox.layers.{}.attention.dense.weight"]),
    rule("decoder.layers.{}.self_attention.linear_proj.bias", &["gpt_neox.layers.{}.attention.dense.bias"]),
    rule("decoder.layers.{}.pre_mlp_layernorm.weight", &["gpt_neox.layers.{}.post_attention_layernorm.weight"]),
    rule("decoder.layers.{}.pre_mlp_layernorm.bias", &["gpt_neox.layers.{}.post_attention_layernorm.bias"]),
    rule("decoder.layers.{}.mlp.linear_fc1.weight", &["gpt_neox.layers.{}.mlp.dense_h_to_4h.weight"]),
    rule("decoder.layers.{}.mlp.linear_fc1.bias", &["gpt_neox.layers.{}.mlp.dense_h_to_4h.bias"]),
    rule("decoder.layers.{}.mlp.linear_fc2.weight", &["gpt_neox.layers.{}.mlp.dense_4h_to_h.weight"]),
    rule("decoder.layers.{}.mlp.linear_fc2.bias", &["gpt_neox.layers.{}.mlp.dense_4h_to_h.bias"]),
    rule("decoder.final_layernorm.weight", &["gpt_neox.final_layer_norm.weight"]),
    rule("decoder.final_layernorm.bias", &["gpt_neox.final_layer_norm.bias"]),
    rule("output_layer.weight", &["embed_out.weight"]).fused(Fusion::Vocabulary).with_legacy_name("lm_head.weight"),
    // The state of a module of transformers 5.
    rule("output_layer.weight", &["lm_head.weight"]).fused(Fusion::Vocabulary).stacked(),
];
