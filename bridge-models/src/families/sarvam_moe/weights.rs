//! Names of parameters in files where they differ from GLM-4.5's.

use crate::families::prelude::*;

pub(crate) const ON_DISK: &[WeightRule] = &[
    rule("embedding.word_embeddings.weight", &["model.word_embeddings.weight"]).fused(Fusion::Vocabulary),
    layer!("self_attention.linear_qkv.weight", "attention.query_key_value.weight").fused(Fusion::PackedQkv),
    layer!("self_attention.linear_qkv.bias", "attention.query_key_value.bias").fused(Fusion::PackedQkv),
    layer!("self_attention.linear_proj.weight", "attention.dense.weight"),
    layer!("self_attention.linear_proj.bias", "attention.dense.bias"),
    layer!("self_attention.q_layernorm.weight", "attention.query_layernorm.weight"),
    layer!("self_attention.k_layernorm.weight", "attention.key_layernorm.weight"),
    layer!("mlp.router.expert_bias", "mlp.gate.expert_bias"),
];
