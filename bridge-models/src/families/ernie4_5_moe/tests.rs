//! Features of ERNIE 4.5 with experts. Import, export and reference values are tested for all
//! families in `huggingface/tests`.

use bridge_core::config::RouterScoreFunction;
use serde_json::{Value, json};

use super::FAMILY;
use crate::decoder::DecoderConfig;
use crate::families::testing::{read_back, wrong_key};

fn layers(config: &DecoderConfig) -> Vec<bool> {
    (0..4).map(|layer| config.moe_layer(layer).is_some()).collect()
}

#[test]
fn absent_settings_have_the_familys_defaults() {
    let config = read_back(&FAMILY, json!({}));
    let moe = config.moe.as_ref().unwrap();
    assert_eq!((moe.num_experts, moe.topk, moe.ffn_hidden_size), (64, 6, 1536));
    assert_eq!(moe.shared_expert_intermediate_size, Some(3072));
    assert!(moe.expert_bias && !moe.pre_softmax && moe.score_function == RouterScoreFunction::Softmax);
    assert!(config.share_embeddings_and_output_weights && !config.output_bias);
    assert_eq!(layers(&config), [false, true, true, true]);
}

#[test]
fn layers_with_experts_have_a_first_a_last_and_a_distance() {
    let of = |start: i64, end: i64, interval: i64| -> Value {
        json!({ "moe_layer_start_index": start, "moe_layer_end_index": end, "moe_layer_interval": interval })
    };
    assert_eq!(layers(&read_back(&FAMILY, of(0, -1, 2))), [false, true, false, true]);
    assert_eq!(layers(&read_back(&FAMILY, of(0, 2, 1))), [true, true, true, false]);
    assert_eq!(layers(&read_back(&FAMILY, of(2, 2, 1))), [false, false, true, false]);
    assert_eq!(wrong_key(&FAMILY, of(-1, 2, 1)), "moe_layer_start_index");
}

#[test]
fn one_switch_says_whether_there_are_biases_and_shared_experts_may_be_absent() {
    let config = read_back(&FAMILY, json!({ "use_bias": true, "moe_num_shared_experts": 0 }));
    assert!(config.has_all_biases() && config.output_bias);
    let moe = config.moe.as_ref().unwrap();
    assert!(!moe.linear_bias && moe.shared_expert_intermediate_size.is_none());
    assert_eq!(wrong_key(&FAMILY, json!({ "moe_norm_min": 0.5 })), "moe_norm_min");
}
