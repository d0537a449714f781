//! Features of GPT-NeoX. Import, export and reference values are tested for all families in
//! `huggingface/tests`.

use bridge_core::config::{BlockOrder, Normalization};
use serde_json::{Value, json};

use super::FAMILY;
use crate::decoder::PositionEmbedding;
use crate::families::testing::{read_back, wrong_key};

fn rotated(more: Value) -> (f64, f64) {
    match read_back(&FAMILY, more).position_embedding {
        PositionEmbedding::Rope(rope) => (rope.base, rope.percent),
        other => panic!("{other:?}"),
    }
}

#[test]
fn absent_settings_have_the_familys_defaults() {
    let config = read_back(&FAMILY, json!({ "hidden_size": 48 }));
    assert_eq!((config.num_query_groups, config.kv_channels, config.max_position_embeddings), (6, 8, 2048));
    assert!(config.qkv_bias && config.proj_bias && config.mlp_bias && !config.gated_linear_unit);
    assert!(!config.share_embeddings_and_output_weights);
    assert_eq!((config.norm.kind, config.norm.epsilon), (Normalization::LayerNorm, 1e-5));
    assert_eq!(config.residual.blocks, BlockOrder::Parallel);
}

#[test]
fn blocks_may_follow_each_other_and_attention_may_have_no_biases() {
    let changes = json!({
        "hidden_size": 48, "use_parallel_residual": false, "attention_bias": false, "hidden_dropout": 0.1,
        "tie_word_embeddings": true,
    });
    let config = read_back(&FAMILY, changes);
    assert_eq!(config.residual.blocks, BlockOrder::Sequential);
    assert!(!config.qkv_bias && !config.proj_bias && config.mlp_bias && config.share_embeddings_and_output_weights);
    assert_eq!((config.hidden_dropout, config.embedding_dropout, config.attention_dropout), (0.1, 0.1, 0.0));
}

#[test]
fn rotary_settings_have_the_familys_names_and_the_usual_ones() {
    let with = |more: Value| {
        let mut settings = json!({ "hidden_size": 96 });
        settings.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        rotated(settings)
    };
    assert_eq!(with(json!({})), (10_000.0, 0.25));
    assert_eq!(with(json!({ "rotary_pct": 0.5, "rotary_emb_base": 500 })), (500.0, 0.5));
    assert_eq!(with(json!({ "rotary_pct": 1.0 })), (10_000.0, 1.0));
    let table = json!({ "rope_type": "default", "rope_theta": 700.0, "partial_rotary_factor": 0.75 });
    assert_eq!(with(json!({ "rope_parameters": table, "rotary_pct": 0.5 })), (700.0, 0.75));
    let elsewhere = json!({ "rope_theta": 700.0, "partial_rotary_factor": 0.75 });
    assert_eq!(with(elsewhere), (10_000.0, 0.25), "beside a table only the family's names count");
    assert_eq!(wrong_key(&FAMILY, json!({ "hidden_size": 36 })), "rotary_pct");
    for share in [0.05, 0.2, 1.5, -0.25] {
        assert_eq!(wrong_key(&FAMILY, json!({ "hidden_size": 96, "rotary_pct": share })), "rotary_pct");
    }
    let table = json!({ "rope_type": "default", "partial_rotary_factor": 0.2 });
    let key = "rope_parameters.partial_rotary_factor";
    assert_eq!(wrong_key(&FAMILY, json!({ "hidden_size": 96, "rope_parameters": table, "rotary_pct": 0.5 })), key);
    assert_eq!(wrong_key(&FAMILY, json!({ "hidden_size": 42, "rotary_pct": 1.0 })), "hidden_size");
    assert_eq!(wrong_key(&FAMILY, json!({ "hidden_size": 50 })), "num_attention_heads");
}
