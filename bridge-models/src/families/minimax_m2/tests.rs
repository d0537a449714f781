//! Features of MiniMax-M2. Import, export and reference values are tested for all families in
//! `huggingface/tests`.

use bridge_core::config::{QkNormScope, RouterScoreFunction};
use serde_json::{Value, json};

use super::FAMILY;
use crate::decoder::PositionEmbedding;
use crate::families::testing::{read_back, wrong_key};

#[test]
fn absent_settings_have_the_familys_defaults() {
    let config = read_back(&FAMILY, json!({}));
    assert_eq!((config.kv_channels, config.max_position_embeddings), (128, 196_608));
    assert!(config.qk_layernorm && config.qk_layernorm_scope == QkNormScope::Projection);
    let moe = config.moe.unwrap();
    assert_eq!((moe.num_experts, moe.topk, moe.ffn_hidden_size), (256, 8, 36));
    assert_eq!((moe.score_function, moe.shared_expert_intermediate_size), (RouterScoreFunction::Sigmoid, None));
    assert!(moe.expert_bias && !moe.raw_scores);
}

#[test]
fn rotated_elements_are_counted_or_shared() {
    let percent = |more: Value| match read_back(&FAMILY, more).position_embedding {
        PositionEmbedding::Rope(rope) => (rope.base, rope.percent),
        other => panic!("{other:?}"),
    };
    assert_eq!(percent(json!({})), (5e6, 1.0));
    assert_eq!(percent(json!({ "rotary_dim": 64 })), (5e6, 0.5));
    let both = json!({ "rotary_dim": 64, "rope_parameters": { "partial_rotary_factor": 0.25, "rope_theta": 3.0 } });
    assert_eq!(percent(both), (3.0, 0.25));
}

#[test]
fn what_the_decoder_does_not_compute_is_refused() {
    for (key, value) in [
        ("router_jitter_noise", json!(0.1)),
        ("scoring_func", json!("softmax")),
        ("qk_norm_type", json!("per_head")),
        ("use_routing_bias", json!(false)),
        ("shared_intermediate_size", json!(8)),
        ("attn_type_list", json!([1, 0, 1, 1])),
    ] {
        assert_eq!(wrong_key(&FAMILY, json!({ key: value })), key);
    }
    read_back(&FAMILY, json!({ "attn_type_list": [1, 1, 1, 1], "use_qk_norm": true, "use_routing_bias": true }));
}
