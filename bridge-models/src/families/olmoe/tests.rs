//! Features of OLMoE beyond Llama. Import, export and reference values are tested for all families
//! in `huggingface/tests`.

use bridge_core::config::QkNormScope;
use serde_json::json;

use super::FAMILY;
use crate::families::testing::{read_back, wrong_key};

#[test]
fn absent_settings_have_the_familys_defaults() {
    let config = read_back(&FAMILY, json!({}));
    assert_eq!((config.max_position_embeddings, config.norm.epsilon, config.kv_channels), (4096, 1e-5, 4));
    assert!(config.qk_layernorm && config.qk_layernorm_scope == QkNormScope::Projection);
    let moe = config.moe.unwrap();
    assert_eq!((moe.num_experts, moe.topk, moe.ffn_hidden_size, moe.pre_softmax), (64, 8, 36, true));
}

#[test]
fn weights_of_chosen_experts_may_sum_to_one() {
    let settings =
        json!({ "norm_topk_prob": true, "num_experts": 5, "num_experts_per_tok": 3, "attention_bias": true });
    let config = read_back(&FAMILY, settings);
    assert!(config.qkv_bias && config.proj_bias);
    let moe = config.moe.unwrap();
    assert_eq!((moe.num_experts, moe.topk, moe.pre_softmax), (5, 3, false));
}

#[test]
fn queries_keys_and_values_may_have_a_limit() {
    assert_eq!(read_back(&FAMILY, json!({ "clip_qkv": 8.0 })).clip_qkv, Some(8.0));
    assert_eq!(read_back(&FAMILY, json!({ "clip_qkv": null })).clip_qkv, None);
}

#[test]
fn what_the_decoder_does_not_compute_is_refused() {
    assert_eq!(wrong_key(&FAMILY, json!({ "head_dim": 8 })), "head_dim");
}
