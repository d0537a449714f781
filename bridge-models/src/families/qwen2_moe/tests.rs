//! Features of Qwen 2 with experts. Import, export and reference values are tested for all families
//! in `huggingface/tests`.

use serde_json::json;

use super::FAMILY;
use crate::decoder::LayerPattern;
use crate::families::testing::{read_back, wrong_key};

#[test]
fn absent_settings_have_the_familys_defaults() {
    let config = read_back(&FAMILY, json!({}));
    assert!(config.qkv_bias && !config.proj_bias && !config.qk_layernorm);
    let moe = config.moe.unwrap();
    assert_eq!((moe.num_experts, moe.topk, moe.ffn_hidden_size), (60, 4, 1408));
    assert_eq!((moe.shared_expert_intermediate_size, moe.shared_gate, moe.pre_softmax), (Some(5632), true, true));
}

#[test]
fn files_say_sizes_layers_and_weights() {
    let config = read_back(
        &FAMILY,
        json!({
            "qkv_bias": false, "shared_expert_intermediate_size": 20, "norm_topk_prob": true, "decoder_sparse_step": 2,
        }),
    );
    assert!(!config.qkv_bias);
    assert_eq!((0..4).filter(|layer| config.moe_layer(*layer).is_some()).collect::<Vec<_>>(), [1, 3]);
    let moe = config.moe.unwrap();
    assert_eq!((moe.shared_expert_intermediate_size, moe.pre_softmax), (Some(20), false));
}

#[test]
fn every_other_layer_has_the_window() {
    let windows = |more| {
        let config = read_back(&FAMILY, more);
        (config.window_size, config.window_layers)
    };
    let listed = |layers: [bool; 4]| LayerPattern::Listed(layers.to_vec());
    let on = json!({ "use_sliding_window": true, "sliding_window": 8 });
    assert_eq!(windows(on), (Some(7), listed([true, false, true, false])));
    let low = json!({ "use_sliding_window": true, "sliding_window": 8, "max_window_layers": 2 });
    assert_eq!(windows(low), (Some(7), listed([true, false, false, false])));
    assert_eq!(windows(json!({ "sliding_window": 0 })).0, None, "as transformers writes it");
    assert_eq!(wrong_key(&FAMILY, json!({ "use_sliding_window": true, "sliding_window": 0 })), "sliding_window");
}
