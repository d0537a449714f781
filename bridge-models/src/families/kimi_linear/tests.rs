//! Features of Kimi Linear. Import, export and reference values are tested for all families in
//! `huggingface/tests`.

use serde_json::json;

use super::FAMILY;
use crate::families::testing::{read_back, wrong_key};

#[test]
fn layers_and_sizes_are_in_a_table_or_beside_it() {
    let with = |more: serde_json::Value| {
        let mut all = json!({ "num_key_value_heads": 6 });
        all.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        read_back(&FAMILY, all)
    };
    let table = json!({ "full_attn_layers": [2], "kda_layers": [1, 3, 4], "num_heads": 3, "head_dim": 5, "short_conv_kernel_size": 2 });
    let config = with(json!({ "linear_attn_config": table }));
    let linear = config.linear_attention.clone().unwrap();
    assert_eq!((linear.num_key_heads, linear.value_head_size, linear.conv_kernel), (3, 5, 2));
    let is_linear: Vec<bool> = (0..4).map(|layer| config.linear_layer(layer).is_some()).collect();
    assert_eq!(is_linear, [true, false, true, true]);
    let config = with(json!({ "linear_num_heads": 2, "linear_head_dim": 7 }));
    let linear = config.linear_attention.unwrap();
    assert_eq!((linear.num_key_heads, linear.value_head_size, linear.gate_rank), (2, 7, Some(7)));
}

#[test]
fn what_the_family_does_not_have_is_named() {
    let wrong = |key: &str, value: serde_json::Value| {
        let more = json!({ "num_key_value_heads": 6, key: value });
        assert_eq!(wrong_key(&FAMILY, more), key);
    };
    wrong("mla_use_nope", json!(false));
    wrong("moe_router_activation_func", json!("softmax"));
    wrong("hidden_act", json!("gelu"));
}
