//! Features of StableLM beyond Llama. Import, export and reference values are tested for all
//! families in `huggingface/tests`.

use bridge_core::config::{BlockOrder, Normalization};
use serde_json::json;

use super::FAMILY;
use crate::decoder::PositionEmbedding;
use crate::families::testing::{read_back, wrong_key};
use crate::huggingface::{ExpertLayout, WeightMap};

#[test]
fn absent_settings_have_the_familys_defaults() {
    let config = read_back(&FAMILY, json!({ "hidden_size": 48 }));
    assert_eq!((config.kv_channels, config.max_position_embeddings, config.norm.epsilon), (8, 4096, 1e-5));
    assert_eq!((config.norm.kind, config.residual.blocks), (Normalization::LayerNorm, BlockOrder::Sequential));
    assert!(!config.qkv_bias && !config.proj_bias && !config.qk_layernorm);
    let PositionEmbedding::Rope(rope) = config.position_embedding else { panic!("rotary positions") };
    assert_eq!((rope.base, rope.percent), (10_000.0, 0.25));
    assert_eq!(wrong_key(&FAMILY, json!({ "hidden_size": 48, "hidden_dropout": 0.1 })), "hidden_dropout");
}

#[test]
fn each_head_has_a_norm_of_its_own() {
    let options = json!({ "hidden_size": 48, "qk_layernorm": true, "use_parallel_residual": true });
    let config = read_back(&FAMILY, options);
    let map = WeightMap::new(&FAMILY, &config, ExpertLayout::Apart).unwrap();
    let entry = map.entry("decoder.layers.2.self_attention.k_layernorm.weight").unwrap();
    let names: Vec<&str> = entry.tensors.iter().map(|stored| stored.name.as_str()).collect();
    let expected = [0, 1, 2].map(|head| format!("model.layers.2.self_attn.k_layernorm.norms.{head}.weight"));
    assert_eq!(names, expected);
    assert!(entry.tensors.iter().all(|stored| stored.shape == [8]));
    assert!(map.entry("decoder.layers.2.self_attention.k_layernorm.bias").is_none());
    assert!(map.entry("decoder.layers.2.pre_mlp_layernorm.weight").is_none());
}
