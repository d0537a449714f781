//! Features of Bamba. Import, export and reference values are tested for all families in
//! `huggingface/tests`.

use serde_json::{Value, json};

use super::FAMILY;
use crate::decoder::{DecoderConfig, HybridBlock, PositionEmbedding};
use crate::families::testing::{read_back, wrong_key};

fn with(more: Value) -> DecoderConfig {
    let mut settings = json!({ "mamba_n_heads": 6 });
    settings.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    read_back(&FAMILY, settings)
}

fn percent(config: &DecoderConfig) -> f64 {
    match &config.position_embedding {
        PositionEmbedding::Rope(rope) => rope.percent,
        other => panic!("{other:?}"),
    }
}

#[test]
fn half_of_a_head_is_rotated_unless_the_table_says_otherwise() {
    let attention = json!([1, 3, 9]);
    let config = with(json!({ "attn_layer_indices": attention }));
    assert_eq!(percent(&config), 0.5);
    let table = json!({ "rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 1.0 });
    assert_eq!(percent(&with(json!({ "attn_layer_indices": attention, "rope_parameters": table }))), 1.0);
    let layers = config.hybrid.unwrap().layers;
    let mixers: Vec<HybridBlock> = layers.into_iter().step_by(2).collect();
    assert_eq!(mixers, [HybridBlock::Mamba, HybridBlock::Attention].repeat(2));
}

#[test]
fn what_is_not_built_is_refused_by_its_key() {
    for (key, value) in [
        ("attn_layer_indices", json!("1")),
        ("partial_rotary_factor", json!(1.0)),
        ("mamba_d_head", json!(7)),
        ("hidden_act", json!("gelu")),
        ("time_step_limit", json!([0.1])),
    ] {
        assert_eq!(wrong_key(&FAMILY, json!({ "mamba_n_heads": 6, "head_dim": 8, key: value })), key);
    }
}
