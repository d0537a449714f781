//! Features of dots.llm1. Import, export and reference values are tested for all families in
//! `huggingface/tests`.

use serde_json::{Value, json};

use super::FAMILY;
use crate::decoder::LayerPattern;
use crate::families::testing::{read_back, wrong_key};

/// Settings that have no default.
fn with(more: Value) -> Value {
    let mut all = json!({ "n_routed_experts": 6, "num_experts_per_tok": 2, "n_shared_experts": 2 });
    all.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    all
}

#[test]
fn absent_settings_have_the_familys_defaults() {
    let config = read_back(&FAMILY, with(json!({})));
    assert!(config.qk_layernorm && !config.qkv_bias);
    assert_eq!((config.window_size, config.max_position_embeddings), (None, 2048), "no layer is so far up");
    let moe = config.moe.unwrap();
    assert_eq!((moe.layers, moe.shared_expert_intermediate_size), (LayerPattern::All, Some(2816)));
    assert!(moe.raw_scores, "weights do not sum to one");
}

#[test]
fn upper_layers_have_the_window() {
    let windows = |more| {
        let config = read_back(&FAMILY, with(more));
        (config.window_size, config.window_layers)
    };
    let upper = LayerPattern::Listed(vec![false, true, true, true]);
    assert_eq!(windows(json!({ "sliding_window": 8, "max_window_layers": 1 })), (Some(7), upper));
    assert_eq!(windows(json!({ "sliding_window": null, "max_window_layers": 1 })).0, None);
    let types = ["sliding_attention", "full_attention", "full_attention", "full_attention"];
    let first = LayerPattern::Listed(vec![true, false, false, false]);
    assert_eq!(windows(json!({ "layer_types": types })), (Some(4095), first));
    assert_eq!(wrong_key(&FAMILY, with(json!({ "layer_types": types, "sliding_window": null }))), "layer_types");
}

#[test]
fn numbers_of_experts_have_no_default() {
    for key in ["n_routed_experts", "num_experts_per_tok", "n_shared_experts"] {
        assert_eq!(wrong_key(&FAMILY, with(json!({ key: null }))), key);
    }
}
