//! Features of Gemma 2 beyond Llama. Import, export and reference values are tested for all
//! families in `huggingface/tests`.

use bridge_core::config::NormPlacement;
use serde_json::json;

use super::FAMILY;
use crate::decoder::LayerPattern;
use crate::families::testing::{parse, read_back, wrong_key};

#[test]
fn absent_settings_have_the_familys_defaults() {
    let config = read_back(&FAMILY, json!({}));
    assert_eq!((config.kv_channels, config.max_position_embeddings), (256, 8192));
    assert_eq!(
        (config.attention_softcap, config.logit_softcap, config.softmax_scale),
        (Some(50.0), Some(30.0), 0.0625)
    );
    assert!(config.share_embeddings_and_output_weights && config.norm.zero_centered_gamma);
    assert_eq!(config.residual.norms, NormPlacement::Sandwich);
    assert_eq!(config.window_size, Some(4095));
    assert_eq!(config.window_layers, LayerPattern::Listed(vec![true, false, true, false]));
    assert_eq!(config.embedding_multiplier, f64::from(24_f32.sqrt()));
}

#[test]
fn caps_and_windows_may_be_none() {
    let types = ["full_attention"; 4];
    let settings = json!({
        "attn_logit_softcapping": null, "final_logit_softcapping": 20.0, "layer_types": types,
        "tie_word_embeddings": false, "attention_bias": true,
    });
    let config = read_back(&FAMILY, settings);
    assert_eq!((config.attention_softcap, config.logit_softcap, config.window_size), (None, Some(20.0), None));
    assert!(!config.share_embeddings_and_output_weights && config.qkv_bias && config.proj_bias && !config.mlp_bias);
    assert!(parse(&FAMILY, json!({ "attn_logit_softcapping": 0 })).unwrap().validate().is_err());
}

#[test]
fn the_scale_of_scores_is_read_and_written_as_it_was_said() {
    for size in [16, 24, 144, 168, 224, 257, 4608] {
        let config = read_back(&FAMILY, json!({ "query_pre_attn_scalar": size }));
        assert_eq!(config.softmax_scale, 1.0 / f64::from(size).sqrt());
        assert_eq!(FAMILY.settings(&config).unwrap()["query_pre_attn_scalar"], json!(size));
    }
    for (key, settings) in [
        ("query_pre_attn_scalar", json!({ "query_pre_attn_scalar": 0 })),
        ("use_bidirectional_attention", json!({ "use_bidirectional_attention": true })),
    ] {
        assert_eq!(wrong_key(&FAMILY, settings), key);
    }
}
