//! Features of nanochat beyond Llama. Import, export and reference values are tested for all
//! families in `huggingface/tests`.

use bridge_core::config::Activation;
use serde_json::json;

use super::FAMILY;
use crate::decoder::PositionEmbedding;
use crate::families::testing::read_back;
use crate::huggingface::{ExpertLayout, WeightMap};

#[test]
fn absent_settings_have_the_familys_defaults() {
    let config = read_back(&FAMILY, json!({}));
    assert_eq!((config.activation, config.norm.epsilon), (Activation::SquaredRelu, 1e-6));
    assert!(config.embedding_norm && config.qk_layernorm && config.qk_layernorm_after_rope && !config.norm.affine);
    assert_eq!(config.logit_softcap, Some(15.0));
    let PositionEmbedding::Rope(rope) = &config.position_embedding else { panic!("rotary positions") };
    assert!(rope.reversed);
    let map = WeightMap::new(&FAMILY, &config, ExpertLayout::Apart).unwrap();
    assert!(map.entries().iter().all(|entry| !entry.parameter.contains("norm")));
    assert_eq!(read_back(&FAMILY, json!({ "final_logit_softcapping": null })).logit_softcap, None);
}
