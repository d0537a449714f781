//! Features of ERNIE 4.5 beyond Llama. Import, export and reference values are tested for all
//! families in `huggingface/tests`.

use serde_json::json;

use super::FAMILY;
use crate::decoder::PositionEmbedding;
use crate::families::testing::{read_back, wrong_key};

#[test]
fn absent_settings_have_the_familys_defaults() {
    let config = read_back(&FAMILY, json!({}));
    assert_eq!((config.kv_channels, config.max_position_embeddings, config.norm.epsilon), (128, 131_072, 1e-5));
    assert!(config.share_embeddings_and_output_weights && !config.qkv_bias && !config.proj_bias && !config.mlp_bias);
    let PositionEmbedding::Rope(rope) = config.position_embedding else { panic!("rotary positions") };
    assert_eq!((rope.base, rope.interleaved, rope.percent), (5e5, true, 1.0));
}

#[test]
fn one_switch_says_whether_there_are_biases() {
    let config = read_back(&FAMILY, json!({ "use_bias": true, "head_dim": null, "compression_ratio": 1 }));
    assert!(config.has_all_biases());
    assert_eq!(config.kv_channels, 4);
    assert_eq!(wrong_key(&FAMILY, json!({ "compression_ratio": 2.0 })), "compression_ratio");
}
