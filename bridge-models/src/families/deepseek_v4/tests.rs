//! Features of DeepSeek-V4. Import, export and reference values are tested for all families in
//! `huggingface/tests`.

use bridge_core::config::RouterScoreFunction;
use serde_json::{Value, json};

use super::FAMILY;
use crate::decoder::{PositionEmbedding, RopeScaling};
use crate::families::testing::{read_back, wrong_key};

/// All heads share keys.
fn with(more: Value) -> Value {
    let mut all = json!({ "num_key_value_heads": 1, "head_dim": 16, "q_lora_rank": 10, "o_groups": 2 });
    all.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    all
}

#[test]
fn absent_settings_have_the_familys_defaults() {
    let config = read_back(&FAMILY, with(json!({})));
    assert_eq!(config.compressed.as_ref().unwrap().rates, [128, 128, 128, 4]);
    assert_eq!((0..4).filter(|layer| config.compressed_indexer(*layer).is_some()).collect::<Vec<_>>(), [3]);
    assert_eq!((config.window_size, config.activation_clamp, config.rotated_size()), (Some(127), Some(10.0), 2));
    let PositionEmbedding::Rope(rope) = &config.position_embedding else { panic!("rotary positions") };
    assert_eq!((rope.base, rope.windowed_base, rope.interleaved), (160_000.0, Some(1e4), true));
    let moe = config.moe.unwrap();
    assert_eq!((moe.score_function, moe.hash_layers), (RouterScoreFunction::SqrtSoftplus, 3));
    assert_eq!((moe.num_experts, moe.topk, moe.topk_scaling_factor), (256, 6, Some(1.5)));
}

#[test]
fn published_files_have_other_keys() {
    let published = json!({
        "compress_ratios": [0, 128, 4, 4], "compress_rate_csa": 2, "num_hash_layers": 1, "qk_rope_head_dim": 4,
        "rope_theta": 700.0, "compress_rope_theta": 800.0,
        "rope_scaling": { "type": "yarn", "factor": 16.0, "original_max_position_embeddings": 64 },
    });
    let config = read_back(&FAMILY, with(published));
    assert_eq!(config.compressed.as_ref().unwrap().rates, [0, 128, 2, 2]);
    let PositionEmbedding::Rope(rope) = &config.position_embedding else { panic!("rotary positions") };
    assert_eq!((rope.base, rope.windowed_base, rope.percent), (800.0, Some(700.0), 0.25));
    assert!(matches!(&rope.scaling, Some(RopeScaling::Yarn(yarn)) if yarn.attention_factor == Some(1.0)));
    assert_eq!(config.moe.unwrap().hash_layers, 1);
}

#[test]
fn what_the_decoder_does_not_compute_is_refused() {
    let late = ["moe", "hash_moe", "moe", "moe"];
    assert_eq!(wrong_key(&FAMILY, with(json!({ "mlp_layer_types": late }))), "mlp_layer_types");
    assert_eq!(wrong_key(&FAMILY, with(json!({ "scoring_func": "softmax" }))), "scoring_func");
    assert_eq!(wrong_key(&FAMILY, with(json!({ "layer_types": ["full_attention"] }))), "layer_types");
}
