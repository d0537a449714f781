//! Features of DeepSeek-V3 beyond Llama. Import, export and reference values are tested for all
//! families in `huggingface/tests`.

use bridge_core::config::RouterScoreFunction;
use serde_json::{Map, Value, json};

use super::FAMILY;
use crate::decoder::{DecoderConfig, PositionEmbedding};
use crate::huggingface::HfError;
use crate::huggingface::fields::Fields;

/// The decoder of a small `config.json` of five layers; it is written and read again.
fn parse(more: Value) -> Result<DecoderConfig, HfError> {
    let sizes = json!({
        "vocab_size": 50, "hidden_size": 24, "intermediate_size": 36, "num_hidden_layers": 5, "num_attention_heads": 6,
        "q_lora_rank": 10, "kv_lora_rank": 9, "qk_rope_head_dim": 4, "qk_nope_head_dim": 6, "v_head_dim": 7, "n_routed_experts": 16,
        "moe_intermediate_size": 11,
    });
    let tables = [sizes, more].map(|table| table.as_object().unwrap().clone());
    let settings: Map<String, Value> = tables.into_iter().flatten().collect();
    let config = FAMILY.decoder_config(&Fields::new(&settings))?;
    let written = FAMILY.settings(&config).unwrap();
    assert_eq!(FAMILY.decoder_config(&Fields::new(&written)).unwrap(), config);
    config.validate().unwrap();
    Ok(config)
}

#[test]
fn sizes_of_heads_are_those_of_latent_attention() {
    let config = parse(json!({})).unwrap();
    let latent = config.latent.clone().unwrap();
    assert_eq!((latent.q_lora_rank, latent.kv_lora_rank, latent.v_head_dim), (Some(10), 9, 7));
    assert_eq!((config.kv_channels, config.rotary_head(), config.softmax_scale), (10, 4, 1.0 / 10.0_f64.sqrt()));
    assert!(matches!(&config.position_embedding, PositionEmbedding::Rope(rope) if rope.interleaved));
    assert_eq!(parse(json!({ "q_lora_rank": null })).unwrap().latent.unwrap().q_lora_rank, None);
    let halves = parse(json!({ "rope_interleave": false })).unwrap();
    assert!(matches!(&halves.position_embedding, PositionEmbedding::Rope(rope) if !rope.interleaved));
}

#[test]
fn scores_grow_with_yarn() {
    let yarn = json!({ "rope_type": "yarn", "factor": 4.0, "mscale": 1.0, "mscale_all_dim": 1.0, "original_max_position_embeddings": 1024 });
    let config = parse(json!({ "rope_parameters": yarn })).unwrap();
    let growth = 0.1 * 4.0_f64.ln() + 1.0;
    assert!((config.softmax_scale * 10.0_f64.sqrt() - growth * growth).abs() < 1e-12);
}

#[test]
fn the_router_has_groups_a_bias_and_sigmoids() {
    let moe = |more| parse(more).unwrap().moe.unwrap();
    let usual = moe(json!({}));
    assert_eq!((usual.num_groups, usual.group_topk, usual.group_score_topk), (Some(8), Some(4), Some(2)));
    assert_eq!((usual.topk, usual.topk_scaling_factor, usual.raw_scores), (8, Some(2.5), false));
    assert!(usual.expert_bias && usual.score_function == RouterScoreFunction::Sigmoid);
    assert_eq!(usual.shared_expert_intermediate_size, Some(11));
    let one = moe(json!({ "n_group": 1, "topk_group": 1, "n_shared_experts": 3, "norm_topk_prob": false }));
    assert_eq!((one.num_groups, one.shared_expert_intermediate_size, one.raw_scores), (None, Some(33), true));
}

#[test]
fn the_first_layers_are_dense() {
    let dense = |more| {
        let config = parse(more).unwrap();
        (0..5).filter(|layer| config.moe_layer(*layer).is_none()).count()
    };
    assert_eq!((dense(json!({})), dense(json!({ "first_k_dense_replace": 0 }))), (3, 0));
}

#[test]
fn what_the_family_does_not_have_is_named() {
    for (key, settings) in [
        ("num_key_value_heads", json!({ "num_key_value_heads": 3 })),
        ("scoring_func", json!({ "scoring_func": "softmax" })),
        ("n_group", json!({ "n_group": 3 })),
        ("first_k_dense_replace", json!({ "first_k_dense_replace": -1 })),
        ("num_nextn_predict_layers", json!({ "num_nextn_predict_layers": -1 })),
    ] {
        match parse(settings) {
            Err(HfError::Setting { key: named, .. }) => assert_eq!(named, key),
            other => panic!("{key}: {other:?}"),
        }
    }
}
