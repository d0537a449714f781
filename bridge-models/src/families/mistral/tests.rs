//! Features of Mistral beyond Llama. Import, export and reference values are tested for all
//! families in `huggingface/tests`.

use serde_json::json;

use super::FAMILY;
use crate::decoder::{DecoderConfig, LayerPattern};
use crate::families::testing::read_back;

#[test]
fn all_layers_have_the_window_and_null_is_none() {
    let window = |more| read_back(&FAMILY, more).window_size;
    assert_eq!(window(json!({})), Some(4095));
    assert_eq!(window(json!({ "sliding_window": null })), None);
    let config = read_back(&FAMILY, json!({ "sliding_window": 8, "head_dim": 10 }));
    assert_eq!(
        (config.window_size, config.window_layers.clone(), config.kv_channels),
        (Some(7), LayerPattern::All, 10)
    );
    assert_eq!((config.max_position_embeddings, config.norm.epsilon), (131_072, 1e-6));
    // With `layer_types` the folder is a `ministral`, as for transformers.
    let [window, full] = ["sliding_attention", "full_attention"];
    let mixed = read_back(&FAMILY, json!({ "sliding_window": 5, "layer_types": [window, full, window, window] }));
    assert_eq!(mixed.window_layers, LayerPattern::Listed(vec![true, false, true, true]));
    let all = [full; 4];
    let none = read_back(&FAMILY, json!({ "layer_types": all }));
    assert_eq!(none.window_size, None);
}

#[test]
fn there_are_no_biases_to_write() {
    let config = read_back(&FAMILY, json!({ "attention_bias": true }));
    assert!(!config.qkv_bias && !config.proj_bias && !config.mlp_bias);
    FAMILY.settings(&DecoderConfig { qkv_bias: true, proj_bias: true, ..config }).unwrap_err();
}
