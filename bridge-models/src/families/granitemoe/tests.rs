//! Features of Granite with experts. Import, export and reference values are tested for all
//! families in `huggingface/tests`.

use serde_json::json;

use super::FAMILY;
use crate::families::testing::read_back;
use crate::huggingface::{ExpertLayout, Part, WeightMap};

#[test]
fn absent_settings_have_the_familys_defaults() {
    let config = read_back(&FAMILY, json!({}));
    assert_eq!((config.softmax_scale, config.residual.branch_multiplier, config.mlp_bias), (1.0, 1.0, false));
    let moe = config.moe.unwrap();
    assert_eq!((moe.num_experts, moe.topk, moe.ffn_hidden_size, moe.pre_softmax), (8, 2, 36, false));
}

#[test]
fn experts_are_parts_of_two_tensors_in_files_too() {
    let config = read_back(&FAMILY, json!({}));
    let expert = "decoder.layers.1.mlp.experts.local_experts.5.linear_fc1.weight";
    for (layout, name) in
        [(ExpertLayout::Apart, "input_linear.weight"), (ExpertLayout::Stacked, "experts.gate_up_proj")]
    {
        let map = WeightMap::new(&FAMILY, &config, layout).unwrap();
        let stored = &map.entry(expert).unwrap().tensors[0];
        assert_eq!(stored.name, format!("model.layers.1.block_sparse_moe.{name}"));
        assert_eq!(stored.part, Some(Part { index: 5, count: 8, is_joined: false }));
        assert_eq!(stored.whole_shape(), [8, 72, 24]);
    }
}
