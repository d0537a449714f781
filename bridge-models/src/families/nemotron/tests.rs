//! Features of Nemotron beyond Llama. Import, export and reference values are tested for all
//! families in `huggingface/tests`.

use bridge_core::config::{Activation, Normalization};
use serde_json::json;

use super::FAMILY;
use crate::decoder::PositionEmbedding;
use crate::families::testing::{read_back, wrong_key};

#[test]
fn absent_settings_have_the_familys_defaults() {
    let config = read_back(&FAMILY, json!({}));
    assert_eq!((config.max_position_embeddings, config.norm.epsilon, config.init_method_std), (4096, 1e-5, 0.0134));
    assert_eq!((config.activation, config.norm.kind), (Activation::SquaredRelu, Normalization::LayerNorm));
    assert!(
        config.norm.zero_centered_gamma && !config.gated_linear_unit && !config.share_embeddings_and_output_weights
    );
}

#[test]
fn a_part_of_each_head_is_rotated() {
    let share = |more| match read_back(&FAMILY, more).position_embedding {
        PositionEmbedding::Rope(rope) if !rope.interleaved => rope.percent,
        other => panic!("{other:?}"),
    };
    assert_eq!(share(json!({})), 0.5);
    assert_eq!(share(json!({ "head_dim": 16, "partial_rotary_factor": 0.25 })), 0.25);
    let table = json!({ "rope_type": "linear", "factor": 2.0, "partial_rotary_factor": 1.0 });
    assert_eq!(share(json!({ "rope_parameters": table })), 1.0);
    assert_eq!(wrong_key(&FAMILY, json!({ "head_dim": 6 })), "partial_rotary_factor");
}
