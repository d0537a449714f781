//! Features of OLMo 3 beyond OLMo 2. Import, export and reference values are tested for all
//! families in `huggingface/tests`.

use serde_json::{Value, json};

use super::FAMILY;
use crate::decoder::{LayerPattern, PositionEmbedding, RopeConfig, RopeScaling};
use crate::families::testing::{read_back, wrong_key};

fn rope(more: Value) -> RopeConfig {
    match read_back(&FAMILY, more).position_embedding {
        PositionEmbedding::Rope(rope) => rope,
        other => panic!("{other:?}"),
    }
}

#[test]
fn three_of_four_layers_have_a_window() {
    let config = read_back(&FAMILY, json!({}));
    assert_eq!((config.window_size, config.norm.epsilon), (Some(4095), 1e-5));
    assert_eq!(config.window_layers, LayerPattern::Listed(vec![true, true, true, false]));
    let types = ["full_attention"; 4];
    let full = read_back(&FAMILY, json!({ "layer_types": types, "sliding_window": 8 }));
    assert_eq!((full.window_size, full.window_layers), (None, LayerPattern::All));
}

#[test]
fn frequencies_are_scaled_in_full_layers_alone() {
    let yarn = json!({ "rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 256 });
    let usual = rope(json!({}));
    assert_eq!((usual.base, usual.windowed_base, usual.scaling), (5e5, Some(5e5), None));
    let old = rope(json!({ "rope_theta": 5e5, "rope_scaling": yarn }));
    assert!(matches!(old.scaling, Some(RopeScaling::Yarn(yarn)) if yarn.factor == 8.0));
    assert_eq!((old.base, old.windowed_base), (5e5, Some(5e5)));
    // transformers keeps the key beside the tables from windowed layers.
    let other = rope(json!({ "rope_theta": 1e4 }));
    assert_eq!((other.base, other.windowed_base), (1e4, Some(5e5)));
    let scaled = json!({ "rope_parameters": { "sliding_attention": { "rope_type": "linear", "factor": 2.0 } } });
    assert_eq!(wrong_key(&FAMILY, scaled), "rope_parameters.sliding_attention.rope_type");
    assert_eq!(wrong_key(&FAMILY, json!({ "rope_parameters": { "rope_theta": 5e5 } })), "rope_parameters");
}
