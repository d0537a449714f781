//! Settings of Mamba-2's `config.json`, and refusals.

use serde_json::{Map, Value, json};

use crate::decoder::{DecoderConfig, HybridBlock, MambaConfig};
use crate::families::nemotron_h;
use crate::huggingface::fields::Fields;

fn settings(more: Value) -> Map<String, Value> {
    let base = json!({
        "vocab_size": 50, "hidden_size": 24, "num_hidden_layers": 3, "num_heads": 6, "head_dim": 8, "n_groups": 2, "state_size": 5,
    });
    let tables = [base, more].map(|table| table.as_object().unwrap().clone());
    tables.into_iter().flatten().collect()
}

fn read(more: Value) -> Result<DecoderConfig, String> {
    let family = &super::FAMILY;
    family.decoder_config(&Fields::new(&settings(more))).map_err(|error| error.to_string())
}

fn mamba(config: &DecoderConfig) -> MambaConfig {
    config.hybrid.as_ref().unwrap().mamba
}

#[test]
fn absent_settings_have_upstreams_values() {
    let config = read(json!({})).unwrap();
    assert_eq!(config.hybrid.as_ref().unwrap().layers, [HybridBlock::Mamba; 3]);
    let found = mamba(&config);
    assert_eq!((found.conv_kernel, found.chunk_size, found.conv_bias, found.proj_bias), (4, 256, true, false));
    assert_eq!((found.least_time_step, found.largest_time_step), (0.0, None));
    assert_eq!((config.init_method_std, config.norm.epsilon), (0.1, 1e-5));
    config.validate().unwrap();
}

#[test]
fn time_steps_have_a_range_and_no_limit_is_left_out() {
    let family = &super::FAMILY;
    for (limits, expected) in [
        (json!([0.0, 1e300]), (0.0, None)),
        (json!([0.01, 0.5]), (0.01, Some(0.5))),
        (json!([0.01, 1e300]), (0.01, None)),
    ] {
        let config = read(json!({ "time_step_limit": limits })).unwrap();
        assert_eq!((mamba(&config).least_time_step, mamba(&config).largest_time_step), expected);
        let written = family.settings(&config).unwrap();
        assert_eq!(written.contains_key("time_step_limit"), expected != (0.0, None));
        assert_eq!(family.decoder_config(&Fields::new(&written)).unwrap(), config);
    }
    for limits in
        [json!([0.1]), json!([0.1, 0.2, 0.3]), json!(0.1), json!([-1.0, 0.5]), json!(["a", 0.5]), json!([0.0, "x"])]
    {
        let error = read(json!({ "time_step_limit": limits })).unwrap_err();
        assert!(error.contains("time_step_limit") && error.contains("a least and a largest"), "{error}");
    }
}

#[test]
fn what_is_not_built_is_refused_by_key() {
    for (more, key) in [
        (json!({ "expand": 3 }), "expand"),
        (json!({ "hidden_act": "gelu" }), "hidden_act"),
        (json!({ "n_groups": 0 }), "n_groups"),
    ] {
        let error = read(more).unwrap_err();
        assert!(error.contains(key), "{error}");
    }
    assert!(read(json!({ "n_groups": 4 })).unwrap().validate().unwrap_err().to_string().contains("mamba_num_groups"));
    // This family cannot express a width that is not a multiple of the residual stream's width.
    let mut other = read(json!({})).unwrap();
    other.hybrid.as_mut().unwrap().mamba.num_heads = 4;
    assert!(super::FAMILY.settings(&other).is_err());
    nemotron_h::FAMILY.settings(&other).unwrap();
}
