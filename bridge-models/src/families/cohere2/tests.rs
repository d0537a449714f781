//! Features of Cohere 2 beyond Llama. Import, export and reference values are tested for all
//! families in `huggingface/tests`.

use bridge_core::config::{BlockOrder, Normalization};
use serde_json::json;

use super::FAMILY;
use crate::decoder::{DecoderConfig, LayerPattern, PositionEmbedding};
use crate::families::testing::{read_back, wrong_key};

#[test]
fn absent_settings_have_the_familys_defaults() {
    let config = read_back(&FAMILY, json!({}));
    assert_eq!((config.kv_channels, config.max_position_embeddings, config.logit_multiplier), (4, 8192, 0.0625));
    assert_eq!((config.norm.kind, config.norm.epsilon), (Normalization::LayerNormNoBias, 1e-5));
    assert_eq!(config.residual.blocks, BlockOrder::ParallelSharedNorm);
    assert!(config.share_embeddings_and_output_weights && !config.qkv_bias && !config.proj_bias);
    assert_eq!(config.window_size, Some(4095));
}

#[test]
fn layers_with_a_window_are_rotated_and_others_have_no_positions() {
    let config = read_back(&FAMILY, json!({ "sliding_window": 8, "sliding_window_pattern": 2 }));
    assert_eq!(config.window_layers, LayerPattern::Listed(vec![true, false, true, false]));
    assert_eq!(config.no_rope_layers, LayerPattern::Listed(vec![false, true, false, true]));
    let PositionEmbedding::Rope(rope) = &config.position_embedding else { panic!("rotary positions") };
    assert!(rope.interleaved);
    let everywhere = DecoderConfig { no_rope_layers: LayerPattern::None, ..config };
    FAMILY.settings(&everywhere).unwrap_err();
    let types = ["full_attention"; 4];
    let bare = read_back(&FAMILY, json!({ "layer_types": types, "attention_bias": true }));
    assert_eq!((bare.position_embedding, bare.window_size), (PositionEmbedding::None, None));
    assert!(bare.qkv_bias && bare.proj_bias && !bare.mlp_bias);
    assert_eq!(wrong_key(&FAMILY, json!({ "hidden_size": 25 })), "num_attention_heads");
    let large = read_back(&FAMILY, json!({ "hidden_size": 25, "head_dim": 16 }));
    assert_eq!((large.kv_channels, large.softmax_scale), (16, 0.25));
}
