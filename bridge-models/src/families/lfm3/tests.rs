//! Features of LFM3 beyond LFM2. Import, export and reference values are tested for all families in
//! `huggingface/tests`.

use bridge_core::config::{NormPlacement, OutputGateForm};
use serde_json::json;

use super::FAMILY;
use crate::decoder::{HybridBlock, LayerPattern, PositionEmbedding, RopeScaling};
use crate::families::pairs;
use crate::families::testing::{read_back, wrong_key};

#[test]
fn absent_settings_have_the_familys_defaults() {
    let config = read_back(&FAMILY, json!({ "num_hidden_layers": 5 }));
    assert_eq!((config.kv_channels, config.ffn_hidden_size, config.num_layers), (128, 36, 10));
    assert_eq!((config.residual.norms, config.output_gate), (NormPlacement::Sandwich, Some(OutputGateForm::Head)));
    let mixers: Vec<HybridBlock> = pairs::layers(&config).into_iter().map(|[mixer, _]| mixer).collect();
    let (conv, attention) = (HybridBlock::ShortConv, HybridBlock::Attention);
    assert_eq!(mixers, [conv, conv, attention, conv, attention]);
    assert_eq!(config.hybrid.as_ref().unwrap().short_conv.kernel, 7);
    assert_eq!(config.window_layers, LayerPattern::Listed((0..10).map(|layer| layer == 8).collect()));
    assert_eq!(config.window_size, Some(255));
    let PositionEmbedding::Rope(rope) = &config.position_embedding else { panic!("rotary positions") };
    assert_eq!((rope.base, rope.windowed_base), (1e6, Some(1e4)));
    assert_eq!(rope.scaling, Some(RopeScaling::Proportional { share: 0.5 }));
}

#[test]
fn layers_have_what_the_file_says() {
    let said = json!({
        "layer_types": ["full_attention", "sliding_attention", "conv", "full_attention"], "sliding_window": 6,
        "use_sandwich_norm": false, "use_attention_gate": false, "conv_L_cache": 3, "conv_bias": true,
        "attention_bias": true,
        "rope_parameters": {
            "full_attention": { "rope_type": "default", "rope_theta": 500 }, "sliding_attention": { "rope_theta": 700 },
        },
    });
    let config = read_back(&FAMILY, said);
    assert_eq!((config.residual.norms, config.output_gate), (NormPlacement::Before, None));
    assert_eq!(config.window_layers, LayerPattern::Listed((0..8).map(|layer| layer == 2).collect()));
    assert!(config.qkv_bias && config.proj_bias && config.window_size == Some(5));
    let PositionEmbedding::Rope(rope) = &config.position_embedding else { panic!("rotary positions") };
    assert_eq!((rope.base, rope.windowed_base, &rope.scaling), (500.0, Some(700.0), &None));
    let bare = read_back(&FAMILY, json!({ "layer_types": vec!["conv"; 4] }));
    assert_eq!((bare.position_embedding, bare.window_size), (PositionEmbedding::None, None));
}

#[test]
fn wrong_values_are_named() {
    assert_eq!(wrong_key(&FAMILY, json!({ "layer_types": vec!["linear_attention"; 4] })), "layer_types");
    let windowed = json!({ "layer_types": vec!["sliding_attention"; 4], "sliding_window": null });
    assert_eq!(wrong_key(&FAMILY, windowed), "sliding_window");
}
