//! Features of Seed-OSS beyond Llama. Import, export and reference values are tested for all
//! families in `huggingface/tests`.

use serde_json::json;

use super::FAMILY;
use crate::families::testing::read_back;

#[test]
fn absent_settings_have_the_familys_defaults() {
    let config = read_back(&FAMILY, json!({}));
    assert_eq!((config.kv_channels, config.max_position_embeddings, config.norm.epsilon), (128, 524_288, 1e-6));
    assert!(config.qkv_bias && !config.proj_bias && !config.mlp_bias && !config.share_embeddings_and_output_weights);
    assert_eq!((config.hidden_dropout, config.attention_dropout, config.embedding_dropout), (0.1, 0.1, 0.0));
    assert_eq!(read_back(&FAMILY, json!({ "head_dim": null })).kv_channels, 4);
}

#[test]
fn biases_have_switches_of_their_own() {
    let biases = |more| {
        let config = read_back(&FAMILY, more);
        (config.qkv_bias, config.proj_bias, config.mlp_bias)
    };
    assert_eq!(biases(json!({ "attention_bias": false, "attention_out_bias": true })), (false, true, false));
    assert_eq!(biases(json!({ "attention_out_bias": true, "mlp_bias": true })), (true, true, true));
}
