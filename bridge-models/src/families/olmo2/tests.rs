//! Features of OLMo 2 beyond Llama. Import, export and reference values are tested for all families
//! in `huggingface/tests`.

use bridge_core::config::{NormPlacement, QkNormScope};
use serde_json::json;

use super::FAMILY;
use crate::families::testing::read_back;
use crate::huggingface::{ExpertLayout, WeightMap};

#[test]
fn absent_settings_have_the_familys_defaults() {
    let config = read_back(&FAMILY, json!({}));
    assert_eq!((config.kv_channels, config.max_position_embeddings, config.norm.epsilon), (4, 2048, 1e-5));
    assert_eq!((config.residual.norms, config.qk_layernorm_scope), (NormPlacement::Output, QkNormScope::Projection));
    assert!(config.qk_layernorm && !config.qkv_bias && !config.share_embeddings_and_output_weights);
}

#[test]
fn one_norm_has_a_weight_for_each_element_of_all_heads() {
    let config = read_back(&FAMILY, json!({ "head_dim": 10, "attention_bias": true, "tie_word_embeddings": true }));
    let map = WeightMap::new(&FAMILY, &config, ExpertLayout::Apart).unwrap();
    let stored = |name: &str| map.entry(&format!("decoder.layers.3.{name}")).map(|entry| entry.tensors[0].clone());
    for (ours, theirs, size) in [("q_layernorm", "q_norm", 60), ("k_layernorm", "k_norm", 30)] {
        let tensor = stored(&format!("self_attention.{ours}.weight")).unwrap();
        let name = format!("model.layers.3.self_attn.{theirs}.weight");
        assert_eq!((tensor.name, tensor.shape), (name, vec![size]));
    }
    let norm = stored("post_self_attention_layernorm.weight").unwrap().name;
    assert_eq!(norm, "model.layers.3.post_attention_layernorm.weight");
    assert_eq!(stored("input_layernorm.weight"), None);
    assert!(stored("self_attention.linear_proj.bias").is_some());
}
