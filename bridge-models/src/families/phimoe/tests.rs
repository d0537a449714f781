//! Features of Phi-3.5-MoE beyond Mixtral. Import, export and reference values are tested for all
//! families in `huggingface/tests`.

use bridge_core::config::{Normalization, RouterScoreFunction};
use serde_json::json;

use super::FAMILY;
use crate::decoder::{PositionEmbedding, RopeScaling};
use crate::families::testing::{read_back, wrong_key};

#[test]
fn absent_settings_have_the_familys_defaults() {
    let config = read_back(&FAMILY, json!({}));
    let moe = config.moe.as_ref().unwrap();
    assert_eq!((moe.num_experts, moe.topk, moe.sparsemixer_jitter), (16, 2, 0.01));
    assert_eq!((moe.score_function, config.norm.kind), (RouterScoreFunction::SparseMixer, Normalization::LayerNorm));
    assert!(!config.output_bias && !config.qkv_bias && config.window_size.is_none());
    let other = read_back(&FAMILY, json!({ "lm_head_bias": true, "attention_bias": true, "sliding_window": 9 }));
    assert!(other.output_bias && other.qkv_bias && other.proj_bias && other.window_size == Some(8));
    assert_eq!(wrong_key(&FAMILY, json!({ "num_experts_per_tok": 3 })), "num_experts_per_tok");
}

#[test]
fn longrope_has_one_factor_that_two_keys_say() {
    let table = |long: f64| {
        json!({ "rope_scaling": {
            "type": "longrope", "short_factor": [1.0, 1.5], "long_factor": [2.0, 3.0], "original_max_position_embeddings": 64,
            "short_mscale": 1.25, "long_mscale": long,
        } })
    };
    let config = read_back(&FAMILY, table(1.25));
    let PositionEmbedding::Rope(rope) = config.position_embedding else { panic!("rotary positions") };
    let Some(RopeScaling::LongRope { attention_factor, original_max_position_embeddings, .. }) = rope.scaling else {
        panic!("longrope")
    };
    assert_eq!((attention_factor, original_max_position_embeddings), (1.25, 64));
    assert_eq!(wrong_key(&FAMILY, table(1.5)), "rope_scaling.long_mscale");
    let linear = json!({ "rope_scaling": { "rope_type": "linear", "factor": 2.0 } });
    assert_eq!(wrong_key(&FAMILY, linear), "rope_scaling.rope_type");
}
