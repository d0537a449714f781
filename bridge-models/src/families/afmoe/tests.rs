//! Features of AFMoE beyond Llama. Import, export and reference values are tested for all families
//! in `huggingface/tests`.

use bridge_core::config::OutputGateForm;
use serde_json::json;

use super::FAMILY;
use crate::decoder::{LayerPattern, PositionEmbedding};
use crate::families::testing::{read_back, wrong_key};

#[test]
fn absent_settings_have_the_familys_defaults() {
    let config = read_back(&FAMILY, json!({}));
    assert_eq!((config.kv_channels, config.max_position_embeddings, config.norm.epsilon), (128, 16_384, 1e-5));
    assert_eq!((config.output_gate, config.embedding_multiplier), (Some(OutputGateForm::Element), 1.0));
    let moe = config.moe.unwrap();
    assert_eq!((moe.num_experts, moe.topk, moe.ffn_hidden_size, moe.topk_scaling_factor), (64, 6, 1408, None));
    assert_eq!(moe.shared_expert_intermediate_size, Some(2 * 1408));
    assert_eq!(moe.layers, LayerPattern::Listed(vec![false, true, true, true]));
}

#[test]
fn layers_with_a_window_are_rotated() {
    let config = read_back(&FAMILY, json!({ "global_attn_every_n_layers": 2, "mup_enabled": true }));
    assert_eq!((config.window_size, config.embedding_multiplier), (Some(1023), 24_f64.sqrt()));
    assert_eq!(config.no_rope_layers, LayerPattern::Listed(vec![false, true, false, true]));
    let full = read_back(&FAMILY, json!({ "layer_types": vec!["full_attention"; 4], "num_dense_layers": 0 }));
    assert_eq!((full.position_embedding, full.window_size), (PositionEmbedding::None, None));
    assert_eq!(wrong_key(&FAMILY, json!({ "num_dense_layers": -1 })), "num_dense_layers");
}
