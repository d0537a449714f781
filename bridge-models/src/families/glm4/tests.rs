//! Features of GLM-4 beyond Llama. Import, export and reference values are tested for all families
//! in `huggingface/tests`.

use bridge_core::config::NormPlacement;
use serde_json::json;

use super::FAMILY;
use crate::decoder::PositionEmbedding;
use crate::families::testing::{parse, read_back};

#[test]
fn absent_settings_have_the_familys_defaults() {
    let config = read_back(&FAMILY, json!({}));
    assert_eq!((config.kv_channels, config.max_position_embeddings), (128, 131_072));
    assert_eq!((config.norm.epsilon, config.residual.norms), (1.5625e-7, NormPlacement::Sandwich));
    assert!(config.qkv_bias && !config.proj_bias && !config.mlp_bias && !config.share_embeddings_and_output_weights);
}

#[test]
fn a_part_of_each_head_is_rotated_in_neighbouring_pairs() {
    for percent in [0.25, 0.5, 1.0] {
        let config = read_back(&FAMILY, json!({ "head_dim": 16, "partial_rotary_factor": percent }));
        let PositionEmbedding::Rope(rope) = config.position_embedding else { panic!("rotary positions") };
        assert!(rope.interleaved);
        assert_eq!(rope.percent, percent);
    }
    let usual = parse(&FAMILY, json!({ "rope_parameters": { "rope_theta": 500.0 } })).unwrap();
    let PositionEmbedding::Rope(rope) = usual.position_embedding else { panic!("rotary positions") };
    assert_eq!((rope.base, rope.percent), (500.0, 0.5));
}
