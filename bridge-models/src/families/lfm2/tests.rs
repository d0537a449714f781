//! Features of LFM2. Import, export and reference values are tested for all families in
//! `huggingface/tests`.

use serde_json::json;

use super::FAMILY;
use crate::decoder::{HybridBlock, PositionEmbedding};
use crate::families::testing::{read_back, wrong_key};

#[test]
fn widths_are_adjusted_as_the_family_does() {
    let width = |more| read_back(&FAMILY, more).ffn_hidden_size;
    // 2 x 36 / 3, up to a multiple.
    assert_eq!(width(json!({})), 256);
    assert_eq!(width(json!({ "block_multiple_of": 10 })), 30);
    assert_eq!(width(json!({ "block_multiple_of": 10, "block_ffn_dim_multiplier": 1.3 })), 40);
    assert_eq!(width(json!({ "block_multiple_of": 10, "block_ffn_dim_multiplier": null })), 24);
    assert_eq!(width(json!({ "block_auto_adjust_ff_dim": false })), 36);
    assert_eq!(width(json!({ "block_auto_adjust_ff_dim": false, "block_ff_dim": 50 })), 50);
}

#[test]
fn layers_are_listed_by_type_or_by_number() {
    let mixers =
        |more| -> Vec<HybridBlock> { read_back(&FAMILY, more).hybrid.unwrap().layers.into_iter().step_by(2).collect() };
    let listed = mixers(json!({ "layer_types": ["conv", "full_attention", "conv", "conv"] }));
    assert_eq!(listed, mixers(json!({ "full_attn_idxs": [1] })));
    assert_eq!(listed[..2], [HybridBlock::ShortConv, HybridBlock::Attention]);
    assert_eq!(mixers(json!({})), [HybridBlock::Attention; 4]);
    for (key, value) in [("layer_types", json!(["conv"])), ("full_attn_idxs", json!(["1"]))] {
        assert_eq!(wrong_key(&FAMILY, json!({ key: value })), key);
    }
}

#[test]
fn absent_settings_have_the_familys_defaults() {
    let config = read_back(&FAMILY, json!({ "full_attn_idxs": [1] }));
    assert!(matches!(&config.position_embedding, PositionEmbedding::Rope(rope) if rope.base == 1e6));
    let hybrid = config.hybrid.unwrap();
    assert_eq!((hybrid.short_conv.kernel, hybrid.short_conv.bias, config.qk_layernorm), (3, false, true));
    assert!(config.share_embeddings_and_output_weights);
}
