//! Features of Ministral 3 beyond Mistral. Import, export and reference values are tested for all
//! families in `huggingface/tests`.

use serde_json::json;

use super::FAMILY;
use crate::decoder::{PositionEmbedding, QueryScaleConfig, RopeScaling};
use crate::families::testing::{read_back, wrong_key};

fn scale(beta: f64, length: usize) -> Option<QueryScaleConfig> {
    Some(QueryScaleConfig { beta, length, first: 0, unrotated_only: false })
}

#[test]
fn absent_settings_have_the_familys_defaults() {
    let config = read_back(&FAMILY, json!({}));
    assert_eq!((config.kv_channels, config.max_position_embeddings, config.norm.epsilon), (128, 262_144, 1e-5));
    assert_eq!((config.query_scale, config.window_size), (scale(0.1, 16_384), None));
    let PositionEmbedding::Rope(rope) = config.position_embedding else { panic!("rotary positions") };
    assert_eq!(rope.base, 1e6);
    let Some(RopeScaling::Yarn(yarn)) = rope.scaling else { panic!("YaRN") };
    assert_eq!((yarn.factor, yarn.original_max_position_embeddings), (16.0, 16_384));
    assert_eq!(read_back(&FAMILY, json!({ "head_dim": null })).kv_channels, 4);
}

#[test]
fn queries_grow_by_steps_of_the_original_length() {
    let plain = json!({ "rope_type": "default", "llama_4_scaling_beta": 0.2, "original_max_position_embeddings": 8 });
    let config = read_back(&FAMILY, json!({ "rope_parameters": plain, "sliding_window": 5 }));
    assert_eq!((config.query_scale, config.window_size), (scale(0.2, 8), Some(4)));
    let yarn = json!({ "rope_type": "yarn", "factor": 4.0, "llama_4_scaling_beta": 0.2 });
    let whole = read_back(&FAMILY, json!({ "rope_parameters": yarn, "max_position_embeddings": 64 }));
    assert_eq!(whole.query_scale, scale(0.2, 64));
    let without = json!({ "rope_type": "default" });
    assert_eq!(read_back(&FAMILY, json!({ "rope_parameters": without })).query_scale, None);
    let no_length = json!({ "rope_type": "default", "llama_4_scaling_beta": 0.2 });
    let key = wrong_key(&FAMILY, json!({ "rope_parameters": no_length }));
    assert_eq!(key, "rope_parameters.original_max_position_embeddings");
}
