//! Features of EXAONE 4 beyond Llama. Import, export and reference values are tested for all
//! families in `huggingface/tests`.

use bridge_core::config::NormPlacement;
use serde_json::{Value, json};

use super::FAMILY;
use crate::decoder::{LayerPattern, PositionEmbedding};
use crate::families::testing::{read_back, wrong_key};

#[test]
fn absent_settings_have_the_familys_defaults() {
    let config =
        read_back(&FAMILY, json!({ "num_attention_heads": 32, "hidden_size": 64, "num_key_value_heads": null }));
    assert_eq!((config.num_query_groups, config.max_position_embeddings, config.norm.epsilon), (32, 2048, 1e-5));
    assert_eq!((config.residual.norms, config.window_size), (NormPlacement::Output, Some(4095)));
    assert!(config.qk_layernorm && !config.qkv_bias && !config.share_embeddings_and_output_weights);
}

#[test]
fn windows_have_several_spellings() {
    let layers = |more: Value| {
        let mut settings = json!({ "num_hidden_layers": 6 });
        settings.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let config = read_back(&FAMILY, settings);
        let without = (0..6).map(|layer| config.no_rope_layers.includes(layer)).collect::<Vec<_>>();
        let windowed = (0..6).map(|layer| config.window_layers.includes(layer)).collect::<Vec<_>>();
        assert!(without.iter().zip(&windowed).all(|(without, windowed)| without != windowed));
        windowed
    };
    assert_eq!(layers(json!({})), [true, true, true, false, true, true]);
    assert_eq!(layers(json!({ "sliding_window_pattern": "LLLG" })), [true, true, true, false, true, false]);
    assert_eq!(layers(json!({ "sliding_window_pattern": "LG" })), layers(json!({ "sliding_window_pattern": 2 })));
    let types = ["sliding_attention", "full_attention"].repeat(3);
    assert_eq!(layers(json!({ "sliding_window_pattern": "LLLG", "layer_types": types })), [true, false].repeat(3));
    assert_eq!(wrong_key(&FAMILY, json!({ "sliding_window_pattern": "LLX" })), "sliding_window_pattern");
}

#[test]
fn without_a_window_all_layers_are_rotated() {
    let none = read_back(&FAMILY, json!({ "sliding_window": null, "sliding_window_pattern": null }));
    assert_eq!((none.window_size, none.no_rope_layers), (None, LayerPattern::None));
    assert!(matches!(none.position_embedding, PositionEmbedding::Rope(_)));
    let types = ["full_attention"; 4];
    let bare = read_back(&FAMILY, json!({ "layer_types": types }));
    assert_eq!((bare.window_size, bare.position_embedding), (None, PositionEmbedding::None));
}
