//! Features of Granite beyond Llama. Import, export and reference values are tested for all
//! families in `huggingface/tests`.

use serde_json::json;

use super::FAMILY;
use crate::families::testing::{parse, read_back, wrong_key};

#[test]
fn absent_settings_have_the_familys_defaults() {
    let config = read_back(&FAMILY, json!({}));
    let factors = [config.embedding_multiplier, config.residual.branch_multiplier, config.logit_multiplier];
    assert_eq!((factors, config.softmax_scale), ([1.0; 3], 1.0));
    assert_eq!((config.max_position_embeddings, config.norm.epsilon), (2048, 1e-6));
}

#[test]
fn factors_are_read_and_written_as_they_were_said() {
    for divisor in [8.0, 3.0, 49.0, 13.0, 0.7, 1.1, 6.123] {
        let said = json!({
            "embedding_multiplier": 12, "residual_multiplier": 0.22, "attention_multiplier": 0.015625,
            "logits_scaling": divisor, "mlp_bias": true,
        });
        let config = read_back(&FAMILY, said);
        assert_eq!((config.embedding_multiplier, config.residual.branch_multiplier), (12.0, 0.22));
        assert_eq!((config.softmax_scale, config.logit_multiplier), (0.015_625, 1.0 / divisor));
        assert!(config.mlp_bias && !config.qkv_bias);
        assert_eq!(FAMILY.settings(&config).unwrap()["logits_scaling"], json!(divisor));
    }
    assert_eq!(wrong_key(&FAMILY, json!({ "logits_scaling": 0 })), "logits_scaling");
    assert!(parse(&FAMILY, json!({ "embedding_multiplier": -1 })).unwrap().validate().is_err());
}
