//! Features of Ministral beyond Mistral. Import, export and reference values are tested for all
//! families in `huggingface/tests`.

use serde_json::json;

use super::FAMILY;
use crate::decoder::LayerPattern;
use crate::families::testing::read_back;

#[test]
fn layers_are_windowed_by_their_types() {
    let config =
        read_back(&FAMILY, json!({ "hidden_size": 32, "num_attention_heads": 8, "num_key_value_heads": null }));
    assert_eq!((config.num_query_groups, config.window_size), (8, Some(4095)));
    assert_eq!(config.window_layers, LayerPattern::All);
    assert_eq!(read_back(&FAMILY, json!({ "sliding_window": null })).window_size, None);
    let types = ["full_attention", "sliding_attention", "full_attention", "sliding_attention"];
    let mixed = read_back(&FAMILY, json!({ "sliding_window": 5, "layer_types": types }));
    assert_eq!((mixed.window_size, mixed.window_layers), (Some(4), LayerPattern::Listed([false, true].repeat(2))));
}
