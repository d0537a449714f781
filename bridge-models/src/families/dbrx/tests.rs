//! Features of DBRX. Import, export and reference values are tested for all families in
//! `huggingface/tests`.

use serde_json::{Value, json};

use super::FAMILY;
use crate::decoder::PositionEmbedding;
use crate::families::testing::{read_back, wrong_key};
use crate::huggingface::{ExpertLayout, WeightMap};

/// Six heads of four elements, and these tables.
fn options(attention: Value, experts: Value) -> Value {
    json!({ "d_model": 24, "n_heads": 6, "n_layers": 2, "attn_config": attention, "ffn_config": experts })
}

#[test]
fn tables_have_the_classes_defaults() {
    let config = read_back(&FAMILY, json!({ "d_model": 24, "n_heads": 6 }));
    assert_eq!((config.num_layers, config.num_query_groups, config.clip_qkv), (24, 1, None));
    let moe = config.moe.unwrap();
    assert_eq!((moe.num_experts, moe.topk, moe.ffn_hidden_size, moe.pre_softmax), (4, 1, 3584, false));
}

#[test]
fn older_files_have_the_rotary_base_in_the_table_of_attention() {
    let config = read_back(&FAMILY, options(json!({ "rope_theta": 5e5, "clip_qkv": 8, "kv_n_heads": 3 }), json!({})));
    assert_eq!((config.num_query_groups, config.clip_qkv), (3, Some(8.0)));
    let PositionEmbedding::Rope(rope) = config.position_embedding else { panic!("rotary positions") };
    assert_eq!(rope.base, 5e5);
    assert_eq!(wrong_key(&FAMILY, options(json!({ "kv_n_heads": 4 }), json!({}))), "attn_config.kv_n_heads");
}

#[test]
fn weights_of_experts_sum_to_one_or_are_left() {
    let plain = read_back(&FAMILY, options(json!({}), json!({ "moe_normalize_expert_weights": null })));
    assert!(plain.moe.unwrap().pre_softmax);
    let key = wrong_key(&FAMILY, options(json!({}), json!({ "moe_normalize_expert_weights": 2.0 })));
    assert_eq!(key, "ffn_config.moe_normalize_expert_weights");
}

#[test]
fn rows_of_all_experts_are_one_below_the_other() {
    let config = read_back(&FAMILY, options(json!({}), json!({ "ffn_hidden_size": 5, "moe_num_experts": 3 })));
    let map = WeightMap::new(&FAMILY, &config, ExpertLayout::Stacked).unwrap();
    let entry = map.entry("decoder.layers.1.mlp.experts.local_experts.2.linear_fc2.weight").unwrap();
    assert_eq!(entry.shape, [24, 5]);
    assert_eq!((entry.tensors[0].start(), entry.tensors[0].whole_shape()), (2 * 5 * 24, vec![15, 24]));
}
