//! Features of Hunyuan 3. Import, export and reference values are tested for all families in
//! `huggingface/tests`.

use serde_json::json;

use super::FAMILY;
use crate::families::testing::read_back;
use crate::huggingface::{ExpertLayout, WeightMap};

#[test]
fn absent_settings_have_the_familys_defaults() {
    let config = read_back(&FAMILY, json!({}));
    assert_eq!((config.kv_channels, config.init_method_std, config.norm.epsilon), (128, 0.006, 1e-5));
    assert!(config.qk_layernorm && !config.qkv_bias && !config.mlp_bias);
    assert_eq!((0..4).filter(|layer| config.moe_layer(*layer).is_none()).collect::<Vec<_>>(), [0]);
    let moe = config.moe.unwrap();
    assert_eq!((moe.num_experts, moe.topk, moe.ffn_hidden_size), (192, 8, 1536));
    assert_eq!((moe.topk_scaling_factor, moe.shared_expert_intermediate_size), (Some(2.826), Some(1536)));
}

#[test]
fn biases_of_feed_forward_blocks_have_names_in_both_layouts() {
    let said = json!({ "mlp_bias": true, "attention_bias": true, "num_experts": 4, "num_experts_per_tok": 2 });
    let config = read_back(&FAMILY, said);
    assert!(config.proj_bias && !config.moe.as_ref().unwrap().linear_bias);
    let bias = "decoder.layers.1.mlp.shared_experts.linear_fc2.bias";
    for (layout, module) in [(ExpertLayout::Apart, "shared_mlp"), (ExpertLayout::Stacked, "shared_experts")] {
        let map = WeightMap::new(&FAMILY, &config, layout).unwrap();
        let name = &map.entry(bias).unwrap().tensors[0].name;
        assert_eq!(*name, format!("model.layers.1.mlp.{module}.down_proj.bias"));
    }
}
