//! Features of Step 3.5. Import, export and reference values are tested for all families in
//! `huggingface/tests`.

use serde_json::{Value, json};

use super::FAMILY;
use crate::decoder::{LayerPattern, PositionEmbedding, RopeConfig, RopeScaling};
use crate::families::testing::{read_back, wrong_key};

const TYPES: [&str; 4] = ["full_attention", "sliding_attention", "sliding_attention", "full_attention"];

fn rope(more: Value) -> RopeConfig {
    match read_back(&FAMILY, more).position_embedding {
        PositionEmbedding::Rope(rope) => rope,
        other => panic!("{other:?}"),
    }
}

#[test]
fn absent_settings_have_the_familys_defaults() {
    let config = read_back(&FAMILY, json!({}));
    assert_eq!((config.kv_channels, config.norm.epsilon, config.window_size), (128, 1e-5, None));
    assert_eq!((config.softmax_scale, config.norm.zero_centered_gamma), (1.0 / 128_f64.sqrt(), true));
    assert!(config.qk_layernorm && config.windowed.is_neutral() && config.output_limits.is_none());
    assert_eq!(rope(json!({})).base, 1e4);
    let moe = config.moe.unwrap();
    assert_eq!((moe.num_experts, moe.topk, moe.ffn_hidden_size), (288, 8, 1280));
    assert_eq!((moe.shared_expert_intermediate_size, moe.topk_scaling_factor), (Some(1280), None));
    assert_eq!(moe.layers, LayerPattern::Listed(vec![false, false, false, true]));
}

#[test]
fn published_lists_have_entries_of_predicted_layers_too() {
    let padded = |list: Value, more: Value| -> Value {
        let all = [list, more].into_iter().flat_map(|list| list.as_array().unwrap().clone());
        all.collect()
    };
    let published = json!({
        "num_nextn_predict_layers": 2, "sliding_window": 8, "hidden_act": "swigluoai", "num_attention_groups": 3,
        "layer_types": padded(json!(TYPES), json!(["sliding_attention", "sliding_attention"])),
        "rope_theta": [5e6, 1e4, 1e4, 5e6, 1e4, 1e4], "partial_rotary_factors": [0.5, 1.0, 1.0, 0.5, 1.0, 1.0],
        "rope_scaling": {
            "rope_type": "llama3", "factor": 2.0, "original_max_position_embeddings": 64, "low_freq_factor": 1.0,
            "high_freq_factor": 32.0,
        },
        "yarn_only_types": ["full_attention"], "moe_layers_enum": "1, 3,4,5",
        "attention_other_setting": { "num_attention_heads": 9, "num_attention_groups": 3, "head_dim": 128 },
        "swiglu_limits": [0.0, null, 0.0, 7.0, 0.0, 0.0], "swiglu_limits_shared": [0.0, 0.0, 16.0, 0.0, 0.0, 0.0],
    });
    let config = read_back(&FAMILY, published.clone());
    assert_eq!((config.window_size, config.of_layer(1).num_attention_heads), (Some(7), 9));
    assert_eq!(config.of_layer(3).num_attention_heads, 6);
    assert_eq!([2, 3].map(|layer| config.output_limits(layer)), [[Some(16.0), None], [None, Some(7.0)]]);
    assert_eq!((0..4).filter(|layer| config.moe_layer(*layer).is_some()).collect::<Vec<_>>(), [1, 3]);
    let rope = rope(published);
    assert_eq!((rope.base, rope.percent, rope.windowed_base, rope.windowed_percent), (5e6, 0.5, Some(1e4), Some(1.0)));
    assert!(matches!(rope.scaling, Some(RopeScaling::Llama3 { .. })));
}

#[test]
fn heads_of_windowed_layers_are_those_of_their_own_tables() {
    let heads = |more: Value| {
        let mut all = json!({ "layer_types": TYPES, "sliding_window": 8 });
        all.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        read_back(&FAMILY, all).of_layer(1).num_attention_heads
    };
    assert_eq!(heads(json!({})), 6);
    assert_eq!(heads(json!({ "num_sliding_attention_heads": 12 })), 12);
    let tables = json!({ "1": { "num_attention_heads": 3 }, "2": { "num_attention_heads": 3 } });
    assert_eq!(heads(json!({ "num_sliding_attention_heads": 12, "per_layer_config": tables })), 3);
    assert_eq!(heads(json!({ "num_sliding_attention_heads": 12, "per_layer_config": {} })), 6);
}

#[test]
fn what_the_decoder_does_not_compute_is_refused() {
    let windowed = |key: &str, value: Value| {
        let mut all = json!({ "layer_types": TYPES, "sliding_window": 8 });
        all[key] = value;
        wrong_key(&FAMILY, all)
    };
    let one = json!({ "1": { "num_attention_heads": 3 } });
    let other = json!({ "1": { "head_dim": 64 }, "2": { "head_dim": 64 } });
    assert_eq!(windowed("per_layer_config", one), "per_layer_config");
    assert_eq!(windowed("per_layer_config", other), "per_layer_config.head_dim");
    assert_eq!(windowed("num_sliding_attention_heads", json!(8)), "num_sliding_attention_heads");
    assert_eq!(windowed("rope_theta", json!([1.0, 2.0, 3.0, 1.0])), "rope_theta");
    assert_eq!(windowed("swiglu_limits", json!([1.0])), "swiglu_limits");
    for (key, value) in [
        ("layer_types", json!(TYPES)),
        ("moe_router_activation", json!("softmax")),
        ("use_head_wise_attn_gate", json!(false)),
        ("zero_centered", json!(false)),
        ("sink", json!(true)),
    ] {
        assert_eq!(wrong_key(&FAMILY, json!({ key: value })), key);
    }
}
