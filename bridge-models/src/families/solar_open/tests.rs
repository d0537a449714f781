//! Features of Solar Open. Import, export and reference values are tested for all families in
//! `huggingface/tests`.

use serde_json::json;

use super::FAMILY;
use crate::decoder::{LayerPattern, PositionEmbedding};
use crate::families::testing::{read_back, wrong_key};

#[test]
fn absent_settings_have_the_familys_defaults() {
    let config = read_back(&FAMILY, json!({ "intermediate_size": null }));
    assert_eq!((config.kv_channels, config.norm.epsilon), (128, 1e-5));
    assert!(!config.qk_layernorm && !config.qkv_bias);
    assert!(matches!(&config.position_embedding, PositionEmbedding::Rope(rope) if rope.base == 1e6));
    let moe = config.moe.unwrap();
    assert_eq!((moe.num_experts, moe.topk, moe.ffn_hidden_size), (128, 8, 1280));
    assert_eq!((moe.layers, moe.shared_expert_intermediate_size), (LayerPattern::All, Some(1280)));
}

#[test]
fn what_glm_has_besides_is_refused() {
    assert_eq!(wrong_key(&FAMILY, json!({ "first_k_dense_replace": 1 })), "first_k_dense_replace");
    assert_eq!(wrong_key(&FAMILY, json!({ "use_qk_norm": true })), "use_qk_norm");
}
