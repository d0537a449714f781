//! Features of Arcee beyond Llama. Import, export and reference values are tested for all families
//! in `huggingface/tests`.

use bridge_core::config::{Activation, Normalization};
use serde_json::json;

use super::FAMILY;
use crate::decoder::DecoderConfig;
use crate::families::testing::read_back;

#[test]
fn the_feed_forward_block_has_no_gate() {
    let config = read_back(&FAMILY, json!({}));
    assert_eq!((config.max_position_embeddings, config.norm.epsilon), (4096, 1e-5));
    assert_eq!((config.activation, config.norm.kind), (Activation::SquaredRelu, Normalization::RmsNorm));
    assert!(!config.gated_linear_unit && !config.mlp_bias && !config.qkv_bias);
    let biases = read_back(&FAMILY, json!({ "mlp_bias": true, "attention_bias": true, "hidden_act": "silu" }));
    assert!(biases.has_all_biases() && biases.activation == Activation::Silu);
    FAMILY.settings(&DecoderConfig { gated_linear_unit: true, ..config }).unwrap_err();
}
