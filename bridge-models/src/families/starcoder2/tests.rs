//! Features of StarCoder 2 beyond Llama. Import, export and reference values are tested for all
//! families in `huggingface/tests`.

use bridge_core::config::{Activation, Normalization};
use serde_json::json;

use super::FAMILY;
use crate::decoder::DecoderConfig;
use crate::families::testing::read_back;

#[test]
fn one_switch_gives_every_linear_layer_a_bias() {
    let config = read_back(&FAMILY, json!({ "sliding_window": 8 }));
    assert!(config.qkv_bias && config.proj_bias && config.mlp_bias && !config.gated_linear_unit);
    assert!(config.share_embeddings_and_output_weights);
    assert_eq!((config.norm.kind, config.norm.epsilon), (Normalization::LayerNorm, 1e-5));
    assert_eq!((config.activation, config.window_size), (Activation::GeluTanh, Some(7)));
    let bare = read_back(&FAMILY, json!({ "use_bias": false, "tie_word_embeddings": false, "residual_dropout": 0.1 }));
    assert!(!bare.qkv_bias && !bare.proj_bias && !bare.mlp_bias && !bare.share_embeddings_and_output_weights);
    assert_eq!((bare.hidden_dropout, bare.embedding_dropout, bare.window_size), (0.1, 0.0, None));
    FAMILY.settings(&DecoderConfig { mlp_bias: true, ..bare }).unwrap_err();
}
