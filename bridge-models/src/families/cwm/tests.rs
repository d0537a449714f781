//! Features of CWM beyond Llama. Import, export and reference values are tested for all families in
//! `huggingface/tests`.

use serde_json::{Value, json};

use super::FAMILY;
use crate::decoder::{LayerPattern, PositionEmbedding, RopeScaling};
use crate::families::testing::read_back;

#[test]
fn every_fourth_layer_from_the_first_on_is_full() {
    let config = read_back(&FAMILY, json!({ "num_hidden_layers": 6 }));
    let layers = [false, true, true, true, false, true];
    assert_eq!((config.window_size, config.window_layers), (Some(8191), LayerPattern::Listed(layers.to_vec())));
    assert_eq!((config.kv_channels, config.max_position_embeddings, config.norm.epsilon), (128, 131_072, 1e-5));
    assert!(!config.qkv_bias && !config.proj_bias && !config.mlp_bias && !config.share_embeddings_and_output_weights);
    assert!(read_back(&FAMILY, json!({ "mlp_bias": true })).mlp_bias);
    assert_eq!(read_back(&FAMILY, json!({ "sliding_window": null })).window_size, None);
}

#[test]
fn frequencies_are_scaled_unless_a_table_says_otherwise() {
    let rope = |more: Value| match read_back(&FAMILY, more).position_embedding {
        PositionEmbedding::Rope(rope) => (rope.base, rope.scaling),
        other => panic!("{other:?}"),
    };
    let (base, scaling) = rope(json!({ "rope_theta": 500.0 }));
    assert_eq!(base, 1e6);
    assert!(matches!(scaling, Some(RopeScaling::Llama3 { factor: 16.0, .. })));
    assert_eq!(rope(json!({ "rope_parameters": { "rope_type": "default" } })), (1e6, None));
}
