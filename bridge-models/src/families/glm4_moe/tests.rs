//! Features of GLM-4.5. Import, export and reference values are tested for all families in
//! `huggingface/tests`.

use bridge_core::config::RouterScoreFunction;
use serde_json::json;

use super::FAMILY;
use crate::decoder::PositionEmbedding;
use crate::families::testing::{parse, read_back, wrong_key};
use crate::families::{bailing_moe_v2, glm4_moe_lite, sarvam_moe};
use crate::huggingface::{ExpertLayout, WeightMap};

#[test]
fn absent_settings_have_the_familys_defaults() {
    let config = read_back(&FAMILY, json!({ "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 8 }));
    assert_eq!((config.max_position_embeddings, config.norm.epsilon, config.mtp_num_layers), (131_072, 1e-5, 0));
    assert!(!config.qk_layernorm && !config.qkv_bias && !config.proj_bias);
    assert!(matches!(&config.position_embedding, PositionEmbedding::Rope(rope) if rope.percent == 0.5));
    let dense = (0..4).filter(|layer| config.moe_layer(*layer).is_none()).count();
    let moe = config.moe.unwrap();
    assert_eq!((dense, moe.num_experts, moe.topk, moe.ffn_hidden_size), (1, 128, 8, 1408));
    assert_eq!((moe.score_function, moe.num_groups), (RouterScoreFunction::Sigmoid, None));
    assert_eq!((moe.topk_scaling_factor, moe.shared_expert_intermediate_size), (None, Some(1408)));
}

#[test]
fn attention_has_what_the_file_says() {
    let said = json!({
        "use_qk_norm": true, "attention_bias": true, "n_group": 4, "topk_group": 2, "first_k_dense_replace": 0,
        "n_shared_experts": 2, "num_mtp_layers": 1, "rope_parameters": { "partial_rotary_factor": 1.0 },
    });
    let own_keys = FAMILY.with_own_keys(said.as_object().unwrap().clone()).unwrap();
    let config = read_back(&FAMILY, own_keys.into());
    assert!(config.qk_layernorm && config.qkv_bias && !config.proj_bias);
    assert_eq!(config.mtp_num_layers, 1);
    assert!((0..4).all(|layer| config.moe_layer(layer).is_some()));
    let moe = config.moe.unwrap();
    assert_eq!((moe.num_groups, moe.group_topk, moe.group_score_topk), (Some(4), Some(2), Some(2)));
    assert_eq!(moe.shared_expert_intermediate_size, Some(2816));
}

#[test]
fn wrong_values_are_named() {
    assert_eq!(wrong_key(&FAMILY, json!({ "n_group": 3 })), "n_group");
    assert_eq!(wrong_key(&FAMILY, json!({ "first_k_dense_replace": -1 })), "first_k_dense_replace");
    assert_eq!(
        wrong_key(&FAMILY, json!({ "rope_parameters": { "partial_rotary_factor": 0.3 } })),
        "rope_parameters.partial_rotary_factor"
    );
    assert!(parse(&FAMILY, json!({ "num_experts_per_tok": 200, "head_dim": 4 })).unwrap().validate().is_err());
}

#[test]
fn layers_of_multi_token_prediction_are_behind_all_others() {
    let said = json!({ "num_nextn_predict_layers": 1, "num_key_value_heads": 6, "use_qk_norm": true, "n_group": 1 });
    for family in [&FAMILY, &glm4_moe_lite::FAMILY, &sarvam_moe::FAMILY, &bailing_moe_v2::FAMILY] {
        let config = read_back(family, said.clone());
        for layout in [ExpertLayout::Apart, ExpertLayout::Stacked] {
            let map = WeightMap::new(family, &config, layout).unwrap();
            let stored = |name: &str| map.entry(name).unwrap().tensors[0].name.clone();
            assert_eq!(stored("mtp.layers.0.enorm.weight"), "model.layers.4.enorm.weight");
            let bias = stored("mtp.layers.0.transformer_layer.mlp.router.expert_bias");
            assert!(bias.starts_with("model.layers.4.mlp.gate."), "{bias}");
        }
    }
}
