//! Features of Mixtral beyond Llama. Import, export and reference values are tested for all
//! families in `huggingface/tests`.

use serde_json::json;

use super::FAMILY;
use crate::decoder::PositionEmbedding;
use crate::families::testing::{read_back, wrong_key};

#[test]
fn every_layer_has_experts_as_wide_as_the_file_says() {
    let config = read_back(&FAMILY, json!({ "num_local_experts": 5 }));
    assert_eq!((config.norm.epsilon, config.kv_channels, config.window_size), (1e-5, 4, None));
    assert!(matches!(&config.position_embedding, PositionEmbedding::Rope(rope) if rope.base == 1e6));
    let moe = config.moe.clone().unwrap();
    assert_eq!((moe.num_experts, moe.topk, moe.ffn_hidden_size, moe.pre_softmax), (5, 2, 36, false));
    assert!((0..4).all(|layer| config.moe_layer(layer).is_some()));
    let other = read_back(&FAMILY, json!({ "num_experts_per_tok": 3, "sliding_window": 8, "head_dim": 10 }));
    assert_eq!((other.moe.unwrap().topk, other.window_size, other.kv_channels), (3, Some(7), 10));
}

#[test]
fn noise_on_the_routers_input_is_refused() {
    assert_eq!(wrong_key(&FAMILY, json!({ "router_jitter_noise": 0.1 })), "router_jitter_noise");
}
