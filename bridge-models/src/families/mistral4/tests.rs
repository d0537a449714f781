//! Features of Mistral 4. Import, export and reference values are tested for all families in
//! `huggingface/tests`.

use serde_json::{Value, json};

use super::FAMILY;
use crate::decoder::{LayerPattern, PositionEmbedding, RopeScaling};
use crate::families::testing::{read_back, wrong_key};

/// Each head has keys of its own.
fn with(more: Value) -> Value {
    let mut all = json!({ "num_key_value_heads": 6 });
    all.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    all
}

#[test]
fn absent_settings_have_the_familys_defaults() {
    let config = read_back(&FAMILY, with(json!({})));
    let latent = config.latent.as_ref().unwrap();
    assert_eq!(
        (latent.q_lora_rank, latent.kv_lora_rank, latent.v_head_dim, config.kv_channels),
        (Some(1024), 256, 128, 128)
    );
    let PositionEmbedding::Rope(rope) = &config.position_embedding else { panic!("rotary positions") };
    assert!(rope.interleaved && rope.percent == 1.0 && rope.base == 10_000.0);
    let Some(RopeScaling::Yarn(yarn)) = &rope.scaling else { panic!("YaRN") };
    assert_eq!((yarn.factor, yarn.original_max_position_embeddings), (128.0, 8192));
    assert_eq!(config.softmax_scale, 1.0 / 128_f64.sqrt() * yarn.growth(1.0).powi(2));
    let scale = config.query_scale.unwrap();
    assert_eq!((scale.beta, scale.length), (0.1, 8192));
    let moe = config.moe.unwrap();
    assert_eq!((moe.num_experts, moe.topk, moe.shared_expert_intermediate_size), (128, 4, Some(2048)));
    assert_eq!((moe.layers, moe.pre_softmax, moe.num_groups), (LayerPattern::All, false, None));
}

#[test]
fn odd_spellings_are_read() {
    let yarn = json!({ "type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "rope_theta": 100.0 });
    let config =
        read_back(&FAMILY, with(json!({ "rope_parameters": yarn, "q_lora_rank": null, "rope_interleave": false })));
    assert!(config.latent.as_ref().unwrap().q_lora_rank.is_none() && config.query_scale.is_none());
    assert!(
        matches!(&config.position_embedding, PositionEmbedding::Rope(rope) if rope.base == 100.0 && !rope.interleaved)
    );
    let groups = json!({ "n_group": 8, "topk_group": 2 });
    assert!(!read_back(&FAMILY, with(groups)).moe.unwrap().pre_softmax);
    let raw = json!({ "norm_topk_prob": false, "n_group": 8, "topk_group": 2, "first_k_dense_replace": 1 });
    let moe = read_back(&FAMILY, with(raw)).moe.unwrap();
    assert_eq!((moe.num_groups, moe.group_topk, moe.group_score_topk), (Some(8), Some(2), Some(2)));
    assert!(moe.pre_softmax && !moe.layers.includes(0));
}

#[test]
fn what_the_decoder_does_not_compute_is_refused() {
    assert_eq!(wrong_key(&FAMILY, with(json!({ "n_group": 7, "topk_group": 2 }))), "n_group");
    assert_eq!(wrong_key(&FAMILY, with(json!({ "num_key_value_heads": 3 }))), "num_key_value_heads");
    let half = json!({ "rope_type": "default", "partial_rotary_factor": 0.25 });
    assert_eq!(wrong_key(&FAMILY, with(json!({ "rope_parameters": half }))), "partial_rotary_factor");
}
