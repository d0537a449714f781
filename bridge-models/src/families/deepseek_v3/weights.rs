//! Names of the parameters of latent attention and of layers of multi-token prediction.

use crate::families::prelude::*;

/// The model's embedding and output projection, of which layers of multi-token prediction have
/// copies.
const EMBEDDING: WeightRule =
    rule("embedding.word_embeddings.weight", &["model.embed_tokens.weight"]).fused(Fusion::Vocabulary);

/// Parameters of layers of multi-token prediction, but those of their transformer layers.
pub(crate) const PREDICTED_LAYERS: &[WeightRule] = &[
    EMBEDDING
        .with_copies(&["model.layers.{}.embed_tokens.weight", "model.layers.{}.shared_head.head.weight"])
        .only(|config| config.share_embeddings_and_output_weights),
    EMBEDDING.with_copies(&["model.layers.{}.embed_tokens.weight"]),
    rule("output_layer.weight", &["lm_head.weight"])
        .fused(Fusion::Vocabulary)
        .with_copies(&["model.layers.{}.shared_head.head.weight"]),
    rule("mtp.layers.{}.enorm.weight", &["model.layers.{}.enorm.weight"]),
    rule("mtp.layers.{}.hnorm.weight", &["model.layers.{}.hnorm.weight"]),
    rule("mtp.layers.{}.eh_proj.weight", &["model.layers.{}.eh_proj.weight"]),
    rule("mtp.layers.{}.final_layernorm.weight", &["model.layers.{}.shared_head.norm.weight"]),
];

pub(crate) const LATENT_ATTENTION: &[WeightRule] = &[
    layer!("self_attention.linear_q_proj.weight", "self_attn.q_proj.weight"),
    layer!("self_attention.linear_q_down_proj.weight", "self_attn.q_a_proj.weight"),
    layer!("self_attention.linear_q_down_proj.bias", "self_attn.q_a_proj.bias"),
    layer!("self_attention.q_layernorm.weight", "self_attn.q_a_layernorm.weight"),
    layer!("self_attention.linear_q_up_proj.weight", "self_attn.q_b_proj.weight"),
    layer!("self_attention.linear_kv_down_proj.weight", "self_attn.kv_a_proj_with_mqa.weight"),
    layer!("self_attention.linear_kv_down_proj.bias", "self_attn.kv_a_proj_with_mqa.bias"),
    layer!("self_attention.kv_layernorm.weight", "self_attn.kv_a_layernorm.weight"),
    layer!("self_attention.linear_kv_up_proj.weight", "self_attn.kv_b_proj.weight"),
];
