//! Features of SmolLM3 beyond Llama. Import, export and reference values are tested for all
//! families in `huggingface/tests`.

use serde_json::json;

use super::FAMILY;
use crate::decoder::{LayerPattern, PositionEmbedding};
use crate::families::testing::{read_back, wrong_key};

fn listed(marks: [u8; 4]) -> LayerPattern {
    LayerPattern::Listed(marks.map(|mark| mark == 1).to_vec())
}

#[test]
fn layers_without_rotary_embedding_are_listed_or_counted() {
    let pattern = |more| read_back(&FAMILY, more).no_rope_layers;
    assert_eq!(pattern(json!({})), listed([0, 0, 0, 1]));
    assert_eq!(pattern(json!({ "no_rope_layer_interval": 2 })), listed([0, 1, 0, 1]));
    assert_eq!(
        pattern(json!({ "no_rope_layers": [0, 1, 1, 0, 0], "no_rope_layer_interval": 2 })),
        listed([1, 0, 0, 1])
    );
    assert_eq!(pattern(json!({ "no_rope_layers": [1, 1, 1, 1] })), LayerPattern::None);
    for marks in [json!([1, 1, 1]), json!([1, 1, 1, 2]), json!("all")] {
        assert_eq!(wrong_key(&FAMILY, json!({ "no_rope_layers": marks })), "no_rope_layers");
    }
}

#[test]
fn a_window_is_where_there_is_no_rotary_embedding_unless_layers_are_named() {
    let window = |more| {
        let config = read_back(&FAMILY, more);
        (config.window_size, config.window_layers)
    };
    assert_eq!(window(json!({ "sliding_window": 8 })), (None, LayerPattern::All));
    assert_eq!(window(json!({ "use_sliding_window": true, "sliding_window": 8 })), (Some(7), listed([0, 0, 0, 1])));
    let types = ["sliding_attention", "full_attention", "full_attention", "full_attention"];
    let named = json!({ "use_sliding_window": true, "sliding_window": 8, "layer_types": types });
    assert_eq!(window(named), (Some(7), listed([1, 0, 0, 0])));
}

#[test]
fn absent_settings_have_the_familys_defaults() {
    let config = read_back(&FAMILY, json!({}));
    let PositionEmbedding::Rope(rope) = config.position_embedding else { panic!("rotary positions") };
    assert_eq!((rope.base, config.max_position_embeddings), (2e6, 32_768));
    assert!(config.share_embeddings_and_output_weights && !config.qkv_bias && !config.mlp_bias);
}
