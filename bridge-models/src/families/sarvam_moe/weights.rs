//! Names of parameters in files where they differ from GLM-4.5's.

use crate::huggingface::weight_map::{Fusion, WeightRule, rule};

pub(crate) const ON_DISK: &[WeightRule] = &[
    rule("embedding.word_embeddings.weight", &["model.word_embeddings.weight"]).fused(Fusion::Vocabulary),
    rule("decoder.layers.{}.self_attention.linear_qkv.weight", &["model.layers.{}.attention.query_key_value.weight"])
        .fused(Fusion::PackedQkv),
    rule("decoder.layers.{}.self_attention.linear_qkv.bias", &["model.layers.{}.attention.query_key_value.bias"])
        .fused(Fusion::PackedQkv),
    rule("decoder.layers.{}.self_attention.linear_proj.weight", &["model.layers.{}.attention.dense.weight"]),
    rule("decoder.layers.{}.self_attention.linear_proj.bias", &["model.layers.{}.attention.dense.bias"]),
    rule("decoder.layers.{}.self_attention.q_layernorm.weight", &["model.layers.{}.attention.query_layernorm.weight"]),
    rule("decoder.layers.{}.self_attention.k_layernorm.weight", &["model.layers.{}.attention.key_layernorm.weight"]),
    rule("decoder.layers.{}.mlp.router.expert_bias", &["model.layers.{}.mlp.gate.expert_bias"]),
];
