//! Features of OLMo beyond Llama. Import, export and reference values are tested for all
//! families in `huggingface/tests`.

use bridge_core::config::Normalization;
use serde_json::json;

use super::FAMILY;
use crate::families::testing::read_back;
use crate::huggingface::{ExpertLayout, WeightMap};

#[test]
fn norms_have_no_parameters() {
    let config = read_back(&FAMILY, json!({ "attention_bias": true }));
    assert_eq!((config.norm.kind, config.norm.epsilon), (Normalization::LayerNormNoBias, 1e-5));
    assert!(!config.norm.affine && config.proj_bias && config.clip_qkv.is_none());
    let map = WeightMap::new(&FAMILY, &config, ExpertLayout::Apart).unwrap();
    assert!(map.entries().iter().all(|entry| !entry.parameter.contains("norm")));
}

#[test]
fn queries_keys_and_values_may_be_limited() {
    assert_eq!(read_back(&FAMILY, json!({ "clip_qkv": 8.0 })).clip_qkv, Some(8.0));
    assert_eq!(read_back(&FAMILY, json!({ "clip_qkv": null })).clip_qkv, None);
}
