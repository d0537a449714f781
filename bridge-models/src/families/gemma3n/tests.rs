//! Features of Gemma 3n. Import, export and reference values are tested for all families in
//! `huggingface/tests`.

use serde_json::json;

use super::FAMILY;
use crate::decoder::{AltUpConfig, LayerPattern};
use crate::families::testing::{read_back, wrong_key};

#[test]
fn absent_settings_have_the_familys_defaults() {
    let config = read_back(&FAMILY, json!({ "num_hidden_layers": 20, "intermediate_size": null }));
    assert_eq!((config.ffn_hidden_size, config.num_query_groups, config.kv_channels), (16_384, 3, 256));
    assert_eq!(config.altup, Some(AltUpConfig { count: 4, active: 0, laurel_rank: 64 }));
    assert_eq!((config.window_size, config.num_kv_shared_layers, config.logit_softcap), (Some(511), 15, Some(30.0)));
    let LayerPattern::Listed(layers) = &config.window_layers else { panic!("{:?}", config.window_layers) };
    assert_eq!(layers[..6], [true, true, true, true, false, true]);
    let shares = config.activation_sparsity.unwrap();
    assert_eq!((shares[9], shares[10], shares.len()), (0.95, 0.0, 20));
    assert_eq!(config.per_layer.map(|per_layer| [per_layer.size, per_layer.vocab_size]), Some([256, 262_144]));
}

#[test]
fn widths_and_shares_are_one_a_layer() {
    let config = read_back(&FAMILY, json!({ "intermediate_size": [36, 36, 36, 36], "num_kv_shared_layers": 0 }));
    assert_eq!((config.ffn_hidden_size, config.activation_sparsity), (36, None));
    for (key, value) in [
        ("intermediate_size", json!([36, 36, 36, 40])),
        ("intermediate_size", json!([36])),
        ("activation_sparsity_pattern", json!([0.5])),
        ("activation_sparsity_pattern", json!([0.5, 0.5, 0.5, 1.0])),
        ("altup_correct_scale", json!(false)),
        ("altup_coef_clip", json!(2.0)),
    ] {
        assert_eq!(wrong_key(&FAMILY, json!({ key: value })), key);
    }
}
