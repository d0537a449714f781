//! Features of Cohere 2 with experts. Import, export and reference values are tested for all
//! families in `huggingface/tests`.

use bridge_core::config::{Normalization, RouterScoreFunction};
use serde_json::json;

use super::FAMILY;
use crate::decoder::LayerPattern;
use crate::families::testing::{read_back, wrong_key};

#[test]
fn absent_settings_have_the_familys_defaults() {
    let config = read_back(&FAMILY, json!({}));
    assert_eq!((config.kv_channels, config.norm.kind), (128, Normalization::LayerNormNoBias));
    assert_eq!((config.window_size, config.softmax_scale), (Some(4095), 1.0 / 128_f64.sqrt()));
    assert_eq!(config.window_layers, LayerPattern::Listed(vec![true, true, true, false]));
    assert_eq!(config.no_rope_layers, LayerPattern::Listed(vec![false, false, false, true]));
    let moe = config.moe.unwrap();
    assert_eq!((moe.num_experts, moe.topk, moe.layers, moe.ffn_hidden_size), (8, 2, LayerPattern::All, 36));
    assert_eq!((moe.score_function, moe.output_multiplier), (RouterScoreFunction::Softmax, 1.0));
    assert_eq!(moe.shared_expert_intermediate_size, None);
}

#[test]
fn dense_layers_have_a_width_and_windows_of_their_own() {
    let said = |pattern: usize| {
        json!({
            "first_k_dense_replace": 2, "prefix_dense_sliding_window_pattern": pattern, "sliding_window_pattern": 2,
            "prefix_dense_intermediate_size": 50, "num_shared_experts": 2, "expert_selection_fn": "sigmoid",
            "norm_topk_prob": false, "rms_norm_eps": 1e-3, "rope_parameters": { "rope_type": "linear", "factor": 2.0 },
        })
    };
    let config = read_back(&FAMILY, said(1));
    assert_eq!(config.window_layers, LayerPattern::Listed(vec![false, false, true, false]));
    assert_eq!(config.no_rope_layers, LayerPattern::Listed(vec![false, false, false, true]));
    assert_eq!((config.ffn_hidden_size, config.norm.kind), (50, Normalization::RmsNorm));
    let moe = config.moe.unwrap();
    assert_eq!((moe.shared_expert_intermediate_size, moe.output_multiplier, moe.raw_scores), (Some(72), 0.5, true));
    let config = read_back(&FAMILY, said(2));
    assert_eq!(config.window_layers, LayerPattern::Listed(vec![true, false, true, false]));
    assert_eq!(config.no_rope_layers, LayerPattern::Listed(vec![false, true, false, true]));
}

#[test]
fn wrong_values_are_named() {
    for (key, value) in [
        ("expert_selection_fn", json!("sparsemax")),
        ("shared_expert_combination_strategy", json!("product")),
        ("prefix_dense_sliding_window_pattern", json!(0)),
        ("rope_scaling", json!({ "rope_type": "linear", "factor": 2.0 })),
    ] {
        assert_eq!(wrong_key(&FAMILY, json!({ (key): value })), key);
    }
}
