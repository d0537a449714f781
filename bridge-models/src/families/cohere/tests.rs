//! Features of Cohere beyond Cohere 2. Import, export and reference values are tested for all
//! families in `huggingface/tests`.

use bridge_core::config::QkNormScope;
use serde_json::json;

use super::FAMILY;
use crate::decoder::PositionEmbedding;
use crate::families::testing::read_back;
use crate::huggingface::{ExpertLayout, WeightMap};

#[test]
fn all_layers_are_rotated_and_none_has_a_window() {
    let config = read_back(&FAMILY, json!({}));
    assert_eq!((config.window_size, config.max_position_embeddings, config.logit_multiplier), (None, 8192, 0.0625));
    let PositionEmbedding::Rope(rope) = config.position_embedding else { panic!("rotary positions") };
    assert_eq!((rope.base, rope.interleaved), (5e5, true));
}

#[test]
fn norms_have_a_row_of_weights_for_each_head() {
    let config = read_back(&FAMILY, json!({ "use_qk_norm": true }));
    assert_eq!((config.qk_layernorm, config.qk_layernorm_scope), (true, QkNormScope::EachHead));
    let map = WeightMap::new(&FAMILY, &config, ExpertLayout::Apart).unwrap();
    for (ours, theirs, heads) in [("q_layernorm", "q_norm", 6), ("k_layernorm", "k_norm", 3)] {
        let entry = map.entry(&format!("decoder.layers.1.self_attention.{ours}.weight")).unwrap();
        assert_eq!(entry.tensors[0].name, format!("model.layers.1.self_attn.{theirs}.weight"));
        assert_eq!((&entry.shape, &entry.tensors[0].shape), (&vec![heads * 4], &vec![heads, 4]));
    }
}
