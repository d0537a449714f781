//! Features of K-EXAONE. Import, export and reference values are tested for all families in
//! `huggingface/tests`.

use serde_json::{Value, json};

use super::FAMILY;
use crate::decoder::{DecoderConfig, LayerPattern, PositionEmbedding};
use crate::families::testing::{read_back, wrong_key};

fn windows(config: &DecoderConfig) -> (Option<usize>, LayerPattern, LayerPattern) {
    (config.window_size, config.window_layers.clone(), config.no_rope_layers.clone())
}

#[test]
fn absent_settings_have_the_familys_defaults() {
    let config = read_back(&FAMILY, json!({}));
    let local = LayerPattern::Listed(vec![true, true, true, false]);
    let global = LayerPattern::Listed(vec![false, false, false, true]);
    assert_eq!(windows(&config), (Some(4095), local, global));
    assert_eq!((0..4).filter(|layer| config.moe_layer(*layer).is_none()).collect::<Vec<_>>(), [0]);
    let moe = config.moe.unwrap();
    assert_eq!((moe.num_experts, moe.topk, moe.topk_scaling_factor), (64, 8, Some(2.5)));
}

#[test]
fn layers_without_a_window_rotate_only_if_no_layer_may_have_one() {
    let full = ["full_attention"; 4];
    let none = read_back(&FAMILY, json!({ "sliding_window": null, "layer_types": full }));
    assert_eq!(windows(&none).2, LayerPattern::None);
    assert!(matches!(none.position_embedding, PositionEmbedding::Rope(_)));
    let unrotated = read_back(&FAMILY, json!({ "sliding_window": 8, "layer_types": full }));
    assert_eq!((unrotated.position_embedding, unrotated.window_size), (PositionEmbedding::None, None));
    let types = ["full_attention", "sliding_attention", "full_attention", "sliding_attention"];
    let said = json!({ "sliding_window": 8, "sliding_window_pattern": "LLLG", "layer_types": types });
    let odd = LayerPattern::Listed(vec![true, false, true, false]);
    assert_eq!(windows(&read_back(&FAMILY, said)).2, odd);
}

#[test]
fn dense_layers_are_named_or_the_first() {
    let dense = |more: Value| {
        let config = read_back(&FAMILY, more);
        (0..4).filter(|layer| config.moe_layer(*layer).is_none()).collect::<Vec<_>>()
    };
    assert_eq!(dense(json!({ "first_k_dense_replace": 2 })), [0, 1]);
    let types = json!(["sparse", "dense", "sparse", "sparse"]);
    assert_eq!(dense(json!({ "mlp_layer_types": types, "first_k_dense_replace": 2 })), [1]);
    assert_eq!(wrong_key(&FAMILY, json!({ "sliding_window_pattern": "LLLG" })), "sliding_window_pattern");
}
