//! Features of Ling 2.0. Import, export and reference values are tested for all families in
//! `huggingface/tests`.

use serde_json::json;

use super::FAMILY;
use crate::families::testing::{read_back, wrong_key};
use crate::families::{has_other_class, with_model_type};

#[test]
fn absent_settings_have_the_familys_defaults() {
    let config = read_back(&FAMILY, json!({}));
    assert_eq!((config.kv_channels, config.max_position_embeddings), (128, 32_768));
    assert!(config.qk_layernorm && !config.qkv_bias && !config.proj_bias);
    let moe = config.moe.unwrap();
    assert_eq!((moe.num_experts, moe.topk, moe.num_groups, moe.group_topk), (256, 8, Some(8), Some(4)));
    assert!(!moe.raw_scores);
}

#[test]
fn the_weight_of_a_single_expert_is_its_score() {
    let single = json!({ "num_experts_per_tok": 1, "use_bias": true, "norm_topk_prob": true });
    let config = read_back(&FAMILY, single);
    assert!(config.proj_bias && config.moe.unwrap().raw_scores);
    for key in ["norm_topk_prob", "moe_router_enable_expert_bias", "use_rmsnorm"] {
        assert_eq!(wrong_key(&FAMILY, json!({ key: false })), key);
    }
}

#[test]
fn published_files_have_another_model_type() {
    assert_eq!(with_model_type("bailing_moe"), Some(&FAMILY));
    assert!(has_other_class("bailing_moe", "BailingMoeV2ForCausalLM"));
    assert!(!has_other_class("bailing_moe", "BailingMoeForCausalLM"), "the first version has another router");
}
