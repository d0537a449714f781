//! Features of GLM-5 beyond DeepSeek-V3.2. Import, export and reference values are tested for all
//! families in `huggingface/tests`.

use serde_json::{Value, json};

use super::FAMILY;
use crate::families::testing::{read_back, wrong_key};

/// Each head has keys of its own.
fn with(more: Value) -> Value {
    let mut all = json!({ "num_key_value_heads": 6, "num_hidden_layers": 7 });
    all.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    all
}

#[test]
fn layers_share_choices_by_name_or_by_schedule() {
    let choosing = |more| {
        let config = read_back(&FAMILY, with(more));
        assert!(config.indexer.unwrap().interleaved);
        let sources: Vec<_> = (0..7).map(|layer| config.choice_from(layer).unwrap_or(layer)).collect();
        sources
    };
    assert_eq!(choosing(json!({})), [0, 1, 2, 3, 4, 5, 6]);
    assert_eq!(choosing(json!({ "index_topk_freq": 3 })), [0, 1, 1, 1, 4, 4, 4]);
    assert_eq!(choosing(json!({ "index_topk_freq": 4, "index_skip_topk_offset": 1 })), [0, 0, 0, 0, 4, 4, 4]);
    assert_eq!(choosing(json!({ "index_topk_pattern": "FSSFSFF" })), [0, 0, 0, 3, 3, 5, 6]);
    let types = ["full", "full", "shared", "full", "shared", "shared", "full"];
    assert_eq!(choosing(json!({ "indexer_types": types, "index_topk_freq": 3 })), [0, 1, 1, 3, 3, 3, 6]);
}

#[test]
fn the_first_layer_chooses() {
    let types = ["shared", "full", "full", "full", "full", "full", "full"];
    assert_eq!(wrong_key(&FAMILY, with(json!({ "indexer_types": types }))), "indexer_types");
    assert_eq!(wrong_key(&FAMILY, with(json!({ "index_topk_pattern": "FS" }))), "indexer_types");
}
