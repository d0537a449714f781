//! Features of DeepSeek-V2. Import, export and reference values are tested for all families in
//! `huggingface/tests`.

use bridge_core::config::RouterScoreFunction;
use serde_json::{Value, json};

use super::FAMILY;
use crate::decoder::PositionEmbedding;
use crate::families::testing::{read_back, wrong_key};

/// Each head has keys of its own, and the number of a token's experts has no default.
fn with(more: Value) -> Value {
    let mut all = json!({ "num_key_value_heads": 6, "num_experts_per_tok": 2 });
    all.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    all
}

#[test]
fn absent_settings_have_the_familys_defaults() {
    let config = read_back(&FAMILY, with(json!({})));
    assert_eq!(config.latent.as_ref().unwrap().q_lora_rank, Some(1536));
    assert!(matches!(&config.position_embedding, PositionEmbedding::Rope(rope) if rope.interleaved));
    assert!((0..4).all(|layer| config.moe_layer(layer).is_some()));
    let moe = config.moe.unwrap();
    assert_eq!((moe.num_experts, moe.ffn_hidden_size, moe.shared_expert_intermediate_size), (64, 1407, Some(2814)));
    assert_eq!((moe.score_function, moe.pre_softmax, moe.num_groups), (RouterScoreFunction::Softmax, true, None));
}

#[test]
fn groups_are_compared_by_their_best_expert() {
    let said = json!({
        "topk_method": "group_limited_greedy", "n_group": 8, "topk_group": 3, "routed_scaling_factor": 16.0,
        "q_lora_rank": null, "mlp_bias": true,
    });
    let config = read_back(&FAMILY, with(said));
    assert!(config.mlp_bias && config.latent.unwrap().q_lora_rank.is_none());
    let moe = config.moe.unwrap();
    assert_eq!((moe.num_groups, moe.group_topk, moe.group_score_topk), (Some(8), Some(3), Some(1)));
    assert_eq!((moe.topk_scaling_factor, moe.linear_bias), (Some(16.0), false));
    let greedy = read_back(&FAMILY, with(json!({ "topk_method": "greedy", "n_group": 8, "topk_group": 3 })));
    assert_eq!(greedy.moe.unwrap().num_groups, None);
}

#[test]
fn what_the_decoder_does_not_compute_is_refused() {
    for (key, value) in [
        ("topk_method", json!("noaux_tc")),
        ("norm_topk_prob", json!(true)),
        ("scoring_func", json!("sigmoid")),
        ("moe_layer_freq", json!(2)),
        ("num_key_value_heads", json!(3)),
        ("num_experts_per_tok", json!(null)),
    ] {
        assert_eq!(wrong_key(&FAMILY, with(json!({ key: value }))), key);
    }
    assert_eq!(wrong_key(&FAMILY, with(json!({ "topk_method": "group_limited_greedy" }))), "n_group");
    let odd = json!({ "topk_method": "group_limited_greedy", "n_group": 7, "topk_group": 3 });
    assert_eq!(wrong_key(&FAMILY, with(odd)), "n_group");
}
