//! Features of GLM beyond Llama. Import, export and reference values are tested for all families in
//! `huggingface/tests`.

use bridge_core::config::NormPlacement;
use serde_json::json;

use super::FAMILY;
use crate::decoder::PositionEmbedding;
use crate::families::testing::read_back;

#[test]
fn absent_settings_have_the_familys_defaults() {
    let config = read_back(&FAMILY, json!({}));
    assert_eq!((config.kv_channels, config.max_position_embeddings), (128, 131_072));
    assert_eq!((config.norm.epsilon, config.residual.norms), (1.5625e-7, NormPlacement::Before));
    assert!(config.qkv_bias && !config.proj_bias && !config.mlp_bias && !config.share_embeddings_and_output_weights);
    let PositionEmbedding::Rope(rope) = config.position_embedding else { panic!("rotary positions") };
    assert_eq!((rope.interleaved, rope.percent), (true, 0.5));
}
