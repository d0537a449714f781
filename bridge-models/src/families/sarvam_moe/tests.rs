//! Features of Sarvam 30B. Import, export and reference values are tested for all families in
//! `huggingface/tests`.

use serde_json::json;

use super::FAMILY;
use crate::decoder::PositionEmbedding;
use crate::families::testing::{read_back, wrong_key};

#[test]
fn absent_settings_have_the_familys_defaults() {
    let config = read_back(&FAMILY, json!({}));
    assert_eq!((config.kv_channels, config.init_method_std, config.norm.epsilon), (64, 0.006, 1e-6));
    assert!(config.qk_layernorm && !config.qkv_bias);
    assert!(
        matches!(&config.position_embedding, PositionEmbedding::Rope(rope) if rope.base == 8e6 && rope.percent == 1.0)
    );
    let moe = config.moe.unwrap();
    assert_eq!((moe.num_experts, moe.topk, moe.ffn_hidden_size), (128, 6, 1024));
    assert_eq!((moe.topk_scaling_factor, moe.shared_expert_intermediate_size), (Some(2.5), Some(1024)));
}

#[test]
fn names_of_the_first_files_are_known() {
    let said = json!({ "num_experts": 12, "num_shared_experts": 2, "use_qkv_bias": true });
    let own_keys = FAMILY.with_own_keys(said.as_object().unwrap().clone()).unwrap();
    let config = read_back(&FAMILY, own_keys.into());
    assert!(config.qkv_bias && !config.proj_bias);
    let moe = config.moe.unwrap();
    assert_eq!((moe.num_experts, moe.shared_expert_intermediate_size), (12, Some(2048)));
    assert_eq!(wrong_key(&FAMILY, json!({ "score_function": "softmax" })), "score_function");
}
