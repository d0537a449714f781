//! Features of MiniMax-M3 beyond MiniMax-M2. Import, export and reference values are tested for all
//! families in `huggingface/tests`.

use bridge_core::config::Activation;
use serde_json::json;

use super::FAMILY;
use crate::families::testing::{read_back, wrong_key};
use crate::huggingface::{ExpertLayout, WeightMap};

#[test]
fn absent_settings_have_the_familys_defaults() {
    let config = read_back(&FAMILY, json!({ "num_key_value_heads": null }));
    assert_eq!((config.kv_channels, config.max_position_embeddings, config.ffn_hidden_size), (128, 524_288, 12_288));
    assert_eq!((config.activation, config.activation_clamp), (Activation::QuickGelu, Some(7.0)));
    assert!(config.norm.zero_centered_gamma && config.indexer.is_none() && config.moe_layer(0).is_some());
    let moe = config.moe.unwrap();
    assert_eq!((moe.ffn_hidden_size, moe.shared_expert_intermediate_size), (36, Some(3072)));
    assert_eq!((moe.num_experts, moe.topk, moe.topk_scaling_factor), (128, 4, Some(2.0)));
}

#[test]
fn some_layers_choose_blocks() {
    let types = ["minimax_m3_sparse", "full_attention", "full_attention", "minimax_m3_sparse"];
    let config = read_back(&FAMILY, json!({ "layer_types": types, "index_block_size": 5, "index_local_blocks": 0 }));
    assert_eq!((0..4).filter(|layer| config.indexer_of(*layer).is_some()).collect::<Vec<_>>(), [0, 3]);
    let indexer = config.indexer.unwrap();
    assert_eq!((indexer.topk, indexer.block_size, indexer.local_blocks), (80, Some(5), 0));
    let table = json!({ "sparse_attention_freq": [1, 0, 0, 1], "sparse_block_size": 5, "sparse_local_block": 0 });
    let published =
        json!({ "sparse_attention_config": table, "moe_layer_freq": [1, 1, 1, 1], "hidden_act": "swigluoai" });
    assert_eq!(read_back(&FAMILY, published), config);
    assert_eq!(wrong_key(&FAMILY, json!({ "layer_types": vec!["sparse"; 4] })), "layer_types");
    assert_eq!(wrong_key(&FAMILY, json!({ "swiglu_alpha": 1.0 })), "swiglu_alpha");
}

#[test]
fn files_and_modules_have_names_of_their_own() {
    let said = json!({
        "layer_types": vec!["minimax_m3_sparse"; 4], "mlp_layer_types": ["dense", "sparse", "sparse", "sparse"],
        "num_local_experts": 4, "index_n_heads": 1,
    });
    let config = read_back(&FAMILY, said);
    let names = |layout| {
        let map = WeightMap::new(&FAMILY, &config, layout).unwrap();
        ["mlp.shared_experts.linear_fc1.weight", "self_attention.core_attention.indexer.k_norm.weight"]
            .map(|name| map.entry(&format!("decoder.layers.1.{name}")).unwrap().tensors[0].name.clone())
    };
    let of_layer = |names: [&str; 2]| names.map(|name| format!("model.layers.1.{name}"));
    let apart = ["block_sparse_moe.shared_experts.gate_proj.weight", "self_attn.index_k_norm.weight"];
    assert_eq!(names(ExpertLayout::Apart), of_layer(apart));
    let stacked = ["mlp.shared_experts.gate_up_proj.weight", "self_attn.indexer.k_norm.weight"];
    assert_eq!(names(ExpertLayout::Stacked), of_layer(stacked));
}
