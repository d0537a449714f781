//! Features of Qwen3-Next beyond Qwen 3 with experts. Import, export and reference values are
//! tested for all families in `huggingface/tests`.

use serde_json::json;

use super::FAMILY;
use crate::families::testing::{read_back, wrong_key};

#[test]
fn every_fourth_layer_has_softmax_attention() {
    let config = read_back(&FAMILY, json!({}));
    let is_linear = |config: &crate::decoder::DecoderConfig| -> Vec<bool> {
        (0..4).map(|layer| config.linear_layer(layer).is_some()).collect()
    };
    assert_eq!(is_linear(&config), [true, true, true, false]);
    assert_eq!(is_linear(&read_back(&FAMILY, json!({ "full_attention_interval": 2 }))), [true, false, true, false]);
    let types = ["full_attention", "linear_attention", "linear_attention", "full_attention"];
    let config = read_back(&FAMILY, json!({ "layer_types": types, "full_attention_interval": 3 }));
    assert_eq!(is_linear(&config), [false, true, true, false]);
}

#[test]
fn absent_settings_have_the_familys_defaults() {
    let config = read_back(&FAMILY, json!({}));
    let linear = config.linear_attention.unwrap();
    assert_eq!((linear.num_key_heads, linear.num_value_heads, linear.key_head_size), (16, 32, 128));
    let moe = config.moe.unwrap();
    assert_eq!((moe.num_experts, moe.topk, moe.shared_expert_intermediate_size), (512, 10, Some(512)));
    assert!(moe.shared_gate && !moe.pre_softmax && config.qk_layernorm && config.norm.zero_centered_gamma);
}

#[test]
fn what_the_family_does_not_have_is_named() {
    assert_eq!(wrong_key(&FAMILY, json!({ "hidden_act": "gelu" })), "hidden_act");
    assert_eq!(wrong_key(&FAMILY, json!({ "attn_output_gate": false })), "attn_output_gate");
    assert_eq!(wrong_key(&FAMILY, json!({ "layer_types": ["linear_attention"] })), "layer_types");
}
