//! Features of MiMo-V2-Flash. Import, export and reference values are tested for all families in
//! `huggingface/tests`.

use serde_json::{Value, json};

use super::FAMILY;
use crate::decoder::{LayerPattern, PositionEmbedding};
use crate::families::testing::{read_back, wrong_key};

#[test]
fn absent_settings_have_the_familys_defaults() {
    let config = read_back(&FAMILY, json!({}));
    assert_eq!((config.kv_channels, config.value_size(), config.value_scale), (192, 128, 0.707));
    assert_eq!(config.window_size, Some(128));
    assert_eq!(config.window_layers, LayerPattern::Listed(vec![false, true, true, true]));
    let [full, windowed] = [0, 1].map(|layer| config.of_layer(layer).into_owned());
    assert_eq!(
        [&full, &windowed].map(|config| (config.num_query_groups, config.attention_sinks)),
        [(3, false), (6, true)]
    );
    let PositionEmbedding::Rope(rope) = &config.position_embedding else { panic!("it rotates") };
    assert_eq!((rope.base, rope.windowed_base, rope.percent, rope.windowed_percent), (5e6, Some(1e4), 0.334, None));
    assert_eq!((0..4).filter(|layer| config.moe_layer(*layer).is_none()).collect::<Vec<_>>(), [0]);
    let moe = config.moe.unwrap();
    assert_eq!((moe.num_experts, moe.topk, moe.ffn_hidden_size), (256, 8, 2048));
    assert_eq!((moe.topk_scaling_factor, moe.shared_expert_intermediate_size), (None, None));
}

#[test]
fn windows_shares_and_scales_are_read_in_all_spellings() {
    let published = json!({
        "sliding_window": 16, "sliding_window_size": 16, "attention_value_scale": null, "routed_scaling_factor": null,
        "hybrid_layer_pattern": [0, 1, 1, 1], "moe_layer_freq": [0, 1, 1, 1], "swa_num_key_value_heads": 6,
        "rms_norm_eps": 1e-4, "partial_rotary_factor": 0.5, "swa_rope_theta": 300.0, "v_head_dim": 192,
    });
    let config = read_back(&FAMILY, published);
    assert_eq!((config.window_size, config.value_scale, config.value_channels), (Some(16), 1.0, None));
    let PositionEmbedding::Rope(rope) = &config.position_embedding else { panic!("it rotates") };
    assert_eq!((rope.percent, rope.windowed_base, config.norm.epsilon), (0.5, Some(300.0), 1e-4));
    let tables = json!({
        "full_attention": { "rope_theta": 7.0, "partial_rotary_factor": 1.0 },
        "sliding_attention": { "rope_theta": 5.0 },
    });
    let config = read_back(&FAMILY, json!({ "rope_parameters": tables }));
    let PositionEmbedding::Rope(rope) = &config.position_embedding else { panic!("it rotates") };
    assert_eq!((rope.percent, rope.windowed_percent, rope.windowed_base), (1.0, Some(0.334), Some(5.0)));
    let full = read_back(&FAMILY, json!({ "layer_types": vec!["full_attention"; 4] }));
    assert!(full.windowed.is_neutral() && full.window_size.is_none());
}

#[test]
fn what_the_decoder_does_not_compute_is_refused() {
    let all: [(&str, Value); 7] = [
        ("scoring_func", json!("softmax")),
        ("n_shared_experts", json!(1)),
        ("add_full_attention_sink_bias", json!(true)),
        ("hybrid_layer_pattern", json!([1, 1, 1, 1])),
        ("moe_layer_freq", json!([1, 1, 1, 1])),
        ("swa_num_key_value_heads", json!(3)),
        ("num_key_value_heads", json!(6)),
    ];
    for (key, value) in all {
        assert_eq!(wrong_key(&FAMILY, json!({ key: value })), key);
    }
}
