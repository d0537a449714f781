//! Features of Phi beyond Llama. Import, export and reference values are tested for all families in
//! `huggingface/tests`.

use bridge_core::config::{Activation, BlockOrder, Normalization};
use serde_json::json;

use super::FAMILY;
use crate::decoder::PositionEmbedding;
use crate::families::testing::{read_back, wrong_key};
use crate::huggingface::{ExpertLayout, WeightMap};

#[test]
fn absent_settings_have_the_familys_defaults() {
    let config = read_back(&FAMILY, json!({}));
    assert_eq!((config.activation, config.norm.kind), (Activation::GeluTanh, Normalization::LayerNorm));
    assert_eq!((config.residual.blocks, config.max_position_embeddings), (BlockOrder::ParallelSharedNorm, 2048));
    assert!(config.output_bias && config.has_all_biases() && !config.qk_layernorm && !config.gated_linear_unit);
    let PositionEmbedding::Rope(rope) = config.position_embedding else { panic!("rotary positions") };
    assert_eq!(rope.percent, 0.5);
}

#[test]
fn norms_of_heads_have_biases_and_a_size_of_their_own() {
    let config = read_back(&FAMILY, json!({ "qk_layernorm": true, "tie_word_embeddings": true, "resid_pdrop": 0.1 }));
    let map = WeightMap::new(&FAMILY, &config, ExpertLayout::Apart).unwrap();
    let stored = |name: &str| map.entry(name).map(|entry| entry.tensors[0].clone()).unwrap();
    let bias = stored("decoder.layers.3.self_attention.k_layernorm.bias");
    assert_eq!((bias.name.as_str(), &bias.shape[..]), ("model.layers.3.self_attn.k_layernorm.bias", &[4][..]));
    let output = stored("output_layer.bias");
    assert_eq!((output.name.as_str(), &output.shape[..]), ("lm_head.bias", &[50][..]));
    assert_eq!(wrong_key(&FAMILY, json!({ "qk_layernorm": true, "head_dim": 8 })), "head_dim");
    assert_eq!(read_back(&FAMILY, json!({ "head_dim": 8 })).kv_channels, 8);
}
