//! Features of Gemma 4. Import, export and reference values are tested for all families in
//! `huggingface/tests`.

use serde_json::{Value, json};

use super::FAMILY;
use crate::decoder::{LayerPattern, PositionEmbedding, RopeScaling, WindowedConfig};
use crate::families::testing::{read_back, wrong_key};

fn plain(more: Value) -> Value {
    let mut settings = json!({ "hidden_size_per_layer_input": 0 });
    settings.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    settings
}

#[test]
fn absent_settings_have_the_familys_defaults() {
    let config = read_back(&FAMILY, json!({ "num_hidden_layers": 7 }));
    assert_eq!((config.kv_channels, config.num_query_groups, config.window_size), (512, 3, Some(511)));
    assert_eq!(config.windowed, WindowedConfig { kv_channels: Some(256), ..WindowedConfig::default() });
    let layers = [true, true, true, true, true, false, false];
    assert_eq!(config.window_layers, LayerPattern::Listed(layers.to_vec()), "the last layer has no window");
    assert_eq!(config.per_layer.map(|per_layer| [per_layer.size, per_layer.vocab_size]), Some([256, 262_144]));
    let PositionEmbedding::Rope(rope) = &config.position_embedding else { panic!("{:?}", config.position_embedding) };
    assert_eq!((rope.base, rope.windowed_base), (1e6, Some(1e4)));
    assert_eq!(rope.scaling, Some(RopeScaling::Proportional { share: 0.25 }));
    assert!(config.moe.is_none() && config.layer_scalar && config.logit_softcap.is_none());
}

#[test]
fn heads_of_full_layers_are_said_in_two_forms() {
    let types = json!(["sliding_attention", "full_attention", "sliding_attention", "full_attention"]);
    let sizes = json!({ "layer_types": types, "head_dim": 8, "num_key_value_heads": 6, "attention_k_eq_v": true });
    let with = |more: Value| {
        let mut settings = plain(sizes.clone());
        settings.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        settings
    };
    let own = json!({ "head_dim": 16, "num_key_value_heads": 2 });
    let new = read_back(&FAMILY, with(json!({ "per_layer_config": { "1": own, "3": own } })));
    let old = read_back(&FAMILY, with(json!({ "global_head_dim": 16, "num_global_key_value_heads": 2 })));
    assert_eq!(new, old);
    assert_eq!((new.kv_channels, new.num_query_groups), (16, 2));
    let expected = WindowedConfig { kv_channels: Some(8), num_query_groups: Some(6), ..WindowedConfig::default() };
    assert_eq!(new.windowed, expected);
    assert!(new.has_keys_as_values(1) && !new.has_keys_as_values(2));
    for table in [json!({ "1": own }), json!({ "0": own, "1": own, "3": own }), json!({ "9": own }), json!({ "3": 2 })]
    {
        assert_eq!(wrong_key(&FAMILY, with(json!({ "per_layer_config": table }))), "per_layer_config");
    }
}

#[test]
fn later_layers_share_keys_and_values_by_type() {
    let types = json!(["sliding_attention", "full_attention", "sliding_attention", "full_attention"]);
    let settings = json!({ "layer_types": types, "num_kv_shared_layers": 2, "use_double_wide_mlp": true });
    let config = read_back(&FAMILY, plain(settings));
    assert_eq!([0, 1, 2, 3].map(|layer| config.keys_from(layer)), [None, None, Some(0), Some(1)]);
    assert_eq!([1, 2].map(|layer| config.ffn_size(layer)), [36, 72]);
    let types = json!(["full_attention", "full_attention", "sliding_attention", "full_attention"]);
    let alone =
        crate::families::testing::parse(&FAMILY, plain(json!({ "layer_types": types, "num_kv_shared_layers": 2 })));
    let error = crate::decoder::DecoderConfig { padded_vocab_size: 50, ..alone.unwrap() }.validate().unwrap_err();
    assert!(error.to_string().contains("num_kv_shared_layers"), "{error}");
}

#[test]
fn attention_in_both_directions_is_refused() {
    read_back(&FAMILY, plain(json!({ "use_bidirectional_attention": "vision" })));
    let all = plain(json!({ "use_bidirectional_attention": "all" }));
    assert_eq!(wrong_key(&FAMILY, all), "use_bidirectional_attention");
    assert_eq!(wrong_key(&FAMILY, plain(json!({ "enable_moe_block": true }))), "num_experts");
}
