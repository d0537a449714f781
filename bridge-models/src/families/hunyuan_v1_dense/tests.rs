//! Features of dense Hunyuan models beyond Llama. Import, export and reference values are tested
//! for all families in `huggingface/tests`.

use serde_json::json;

use super::FAMILY;
use crate::decoder::{DecoderConfig, PositionEmbedding, RopeScaling};
use crate::families::testing::{read_back, wrong_key};

fn scaling(config: DecoderConfig) -> Option<RopeScaling> {
    match config.position_embedding {
        PositionEmbedding::Rope(rope) => rope.scaling,
        other => panic!("{other:?}"),
    }
}

#[test]
fn absent_settings_have_the_familys_defaults() {
    let config = read_back(&FAMILY, json!({}));
    assert_eq!((config.kv_channels, config.max_position_embeddings, config.norm.epsilon), (4, 2048, 1e-5));
    assert!(config.qk_layernorm && config.qk_layernorm_after_rope && !config.qkv_bias);
    assert_eq!(scaling(config), None);
}

#[test]
fn a_dynamic_table_is_a_grown_base_if_it_has_alpha() {
    let old = json!({ "type": "dynamic", "alpha": 1000.0, "factor": 1.0, "beta_fast": 32, "mscale": 1.0 });
    let config = read_back(&FAMILY, json!({ "rope_scaling": old, "head_dim": 8 }));
    assert_eq!(scaling(config), Some(RopeScaling::Ntk { alpha: 1000.0 }));
    for alpha in [json!(null), json!(0.0)] {
        let table = json!({ "rope_type": "dynamic", "alpha": alpha, "factor": 2.0 });
        assert_eq!(wrong_key(&FAMILY, json!({ "rope_parameters": table })), "rope_parameters.rope_type");
    }
}
