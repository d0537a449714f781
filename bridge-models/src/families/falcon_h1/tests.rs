//! Features of Falcon-H1. Import, export and reference values are tested for all families in
//! `huggingface/tests`.

use serde_json::{Value, json};

use super::FAMILY;
use crate::decoder::{DecoderConfig, HybridBlock};
use crate::families::testing::{read_back, wrong_key};

fn with(more: Value) -> DecoderConfig {
    let mut settings = json!({ "mamba_n_heads": 6, "mamba_d_ssm": 48 });
    settings.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    read_back(&FAMILY, settings)
}

#[test]
fn both_mixers_are_side_by_side() {
    let hybrid = with(json!({})).hybrid.unwrap();
    assert_eq!(hybrid.layers, [HybridBlock::MambaAttention, HybridBlock::Mlp].repeat(4));
    assert_eq!((hybrid.mamba.head_size, hybrid.mamba.has_norm, hybrid.mamba.norm_before_gate), (8, false, false));
    // Null is twice the width of the stream, absence is 1024.
    assert_eq!(with(json!({ "mamba_d_ssm": null })).hybrid.unwrap().mamba.inner_size(), 48);
    let usual = read_back(&FAMILY, json!({}));
    assert_eq!(usual.hybrid.unwrap().mamba.inner_size(), 1024);
    let other = with(json!({ "mamba_d_ssm": 36, "mamba_rms_norm": true, "projectors_bias": true }));
    let mamba = other.hybrid.unwrap().mamba;
    assert_eq!((mamba.inner_size(), mamba.has_norm, mamba.norm_before_gate), (36, true, true));
    assert!(mamba.has_out_bias() && !mamba.proj_bias);
    let behind = with(json!({ "mamba_rms_norm": true, "mamba_norm_before_gate": false, "mamba_proj_bias": true }));
    let mamba = behind.hybrid.unwrap().mamba;
    assert!(mamba.has_norm && !mamba.norm_before_gate && mamba.proj_bias && !mamba.has_out_bias());
}

#[test]
fn factors_are_read_and_written() {
    let config = with(json!({
        "key_multiplier": 0.39, "mlp_multipliers": [0.88, 0.44], "ssm_multipliers": [0.35, 0.25, 0.35, 0.5, 0.3],
        "attention_in_multiplier": 1.1, "lm_head_multiplier": 0.2,
    }));
    assert_eq!(config.softmax_scale, 0.39 / 2.0);
    let factors = config.hybrid.as_ref().unwrap().factors;
    assert_eq!((factors.mlp_gate, factors.mlp_output, factors.mamba_parts[4]), (0.88, 0.44, 0.3));
    assert_eq!((factors.attention_input, config.logit_multiplier), (1.1, 0.2));
    assert_eq!(FAMILY.settings(&config).unwrap()["key_multiplier"], 0.39);
    for (key, value) in [("mlp_multipliers", json!([1.0])), ("ssm_multipliers", json!("1")), ("mamba_d_ssm", json!(47))]
    {
        let expected = if key == "mamba_d_ssm" { "mamba_d_head" } else { key };
        assert_eq!(wrong_key(&FAMILY, json!({ "mamba_n_heads": 6, "mamba_d_ssm": 48, key: value })), expected);
    }
}
