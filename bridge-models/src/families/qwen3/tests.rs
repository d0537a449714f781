//! Features of Qwen 3 beyond Llama. Import, export and reference values are tested for all families
//! in `huggingface/tests`.

use serde_json::{Value, json};

use super::FAMILY;
use crate::decoder::LayerPattern;
use crate::families::testing::{parse, read_back, wrong_key};

/// Width of the window and the layers that have it.
fn window(more: Value) -> (Option<usize>, LayerPattern) {
    let config = read_back(&FAMILY, more);
    (config.window_size, config.window_layers)
}

#[test]
fn absent_settings_have_the_familys_defaults() {
    let config = parse(&FAMILY, json!({})).unwrap();
    assert_eq!((config.kv_channels, config.max_position_embeddings, config.norm.epsilon), (128, 32_768, 1e-6));
    assert!(config.qk_layernorm && !config.qkv_bias && !config.mlp_bias);
    assert!(!config.share_embeddings_and_output_weights);
    assert_eq!((config.window_size, config.window_layers), (None, LayerPattern::All));
    let tied = parse(&FAMILY, json!({ "tie_word_embeddings": true, "head_dim": 10, "attention_bias": true })).unwrap();
    assert!(tied.share_embeddings_and_output_weights && tied.qkv_bias && tied.proj_bias);
    assert_eq!((tied.kv_channels, tied.softmax_scale), (10, 1.0 / 10.0_f64.sqrt()));
}

#[test]
fn a_window_counts_the_query_and_is_in_the_layers_it_is_said_of() {
    assert_eq!(window(json!({ "sliding_window": 8, "max_window_layers": 1 })), (None, LayerPattern::All));
    let on = |layers: Value| {
        let mut settings = json!({ "use_sliding_window": true, "sliding_window": 8 });
        settings.as_object_mut().unwrap().extend(layers.as_object().unwrap().clone());
        window(settings)
    };
    let upper = LayerPattern::Listed(vec![false, false, false, true]);
    assert_eq!(on(json!({ "max_window_layers": 3 })), (Some(7), upper));
    assert_eq!(on(json!({ "max_window_layers": 0 })), (Some(7), LayerPattern::All));
    assert_eq!(on(json!({})), (None, LayerPattern::All));
    let types = ["full_attention", "sliding_attention", "full_attention", "sliding_attention"];
    let odd = LayerPattern::Listed(vec![false, true, false, true]);
    assert_eq!(on(json!({ "layer_types": types, "max_window_layers": 0 })), (Some(7), odd));
}

#[test]
fn wrong_windows_are_named() {
    for (key, settings) in [
        ("sliding_window", json!({ "use_sliding_window": true, "sliding_window": null })),
        ("layer_types", json!({ "layer_types": ["full_attention"] })),
        (
            "layer_types",
            json!({ "layer_types": ["chunked_attention", "full_attention", "full_attention", "full_attention"] }),
        ),
        (
            "layer_types",
            json!({ "layer_types": ["sliding_attention", "full_attention", "full_attention", "full_attention"] }),
        ),
        ("max_window_layers", json!({ "max_window_layers": "two" })),
    ] {
        assert_eq!(wrong_key(&FAMILY, settings), key);
    }
}
