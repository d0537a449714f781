//! Features of Gemma beyond Llama. Import, export and reference values are tested for all families
//! in `huggingface/tests`.

use bridge_core::config::Activation;
use serde_json::json;

use super::FAMILY;
use crate::decoder::DecoderConfig;
use crate::families::testing::{read_back, wrong_key};

#[test]
fn absent_settings_have_the_familys_defaults() {
    let config = read_back(&FAMILY, json!({}));
    assert_eq!((config.kv_channels, config.max_position_embeddings, config.norm.epsilon), (256, 8192, 1e-6));
    assert!(config.share_embeddings_and_output_weights && config.norm.zero_centered_gamma);
    assert_eq!((config.embedding_multiplier, config.softmax_scale), (f64::from(24_f32.sqrt()), 0.0625));
}

#[test]
fn gelu_means_its_approximation() {
    let unit = |more| read_back(&FAMILY, more).activation;
    assert_eq!(unit(json!({ "hidden_act": "gelu" })), Activation::GeluTanh);
    assert_eq!(unit(json!({ "hidden_act": "silu", "hidden_activation": null })), Activation::Silu);
    let exact = DecoderConfig { activation: Activation::Gelu, ..read_back(&FAMILY, json!({})) };
    assert_eq!(FAMILY.settings(&exact).unwrap()["hidden_act"], "gelu_python");
    assert_eq!(wrong_key(&FAMILY, json!({ "hidden_activation": "gelu" })), "hidden_activation");
    assert_eq!(wrong_key(&FAMILY, json!({ "use_bidirectional_attention": true })), "use_bidirectional_attention");
}
