//! Features of Granite 4. Import, export and reference values are tested for all families in
//! `huggingface/tests`.

use serde_json::{Value, json};

use super::FAMILY;
use crate::decoder::{DecoderConfig, HybridBlock, PositionEmbedding};
use crate::families::testing::{read_back, wrong_key};
use crate::huggingface::{ExpertLayout, WeightMap};

fn with(more: Value) -> DecoderConfig {
    let mut settings = json!({ "mamba_n_heads": 6, "num_hidden_layers": 2 });
    settings.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    read_back(&FAMILY, settings)
}

#[test]
fn absent_settings_have_the_familys_defaults() {
    let config = with(json!({}));
    let moe = config.moe.as_ref().unwrap();
    assert_eq!((moe.num_experts, moe.topk, moe.ffn_hidden_size, moe.pre_softmax), (8, 2, 36, false));
    assert_eq!(moe.shared_expert_intermediate_size, Some(1024));
    assert_eq!((config.num_layers, &config.position_embedding), (4, &PositionEmbedding::None));
    let hybrid = config.hybrid.unwrap();
    assert_eq!(hybrid.layers, [HybridBlock::Mamba, HybridBlock::Moe].repeat(2));
    assert_eq!((hybrid.mamba.head_size, hybrid.mamba.num_groups, hybrid.mamba.state_size), (8, 1, 256));
}

#[test]
fn old_and_new_names_of_layers_mean_the_same() {
    let layers = |names: Value| with(json!({ "layer_types": names })).hybrid.unwrap().layers;
    let old = layers(json!(["attention", "mamba"]));
    assert_eq!(old, layers(json!(["full_attention", "linear_attention"])));
    assert_eq!((old[0], old[2]), (HybridBlock::Attention, HybridBlock::Mamba));
    for types in [json!(["mamba"]), json!(["mamba", "conv"]), json!("mamba")] {
        assert_eq!(wrong_key(&FAMILY, json!({ "num_hidden_layers": 2, "layer_types": types })), "layer_types");
    }
}

#[test]
fn without_experts_and_without_mamba_a_model_is_a_granite() {
    let attention = json!({
        "layer_types": ["attention", "attention"], "num_local_experts": 0, "shared_intermediate_size": 40,
        "position_embedding_type": "rope", "rope_theta": 5e5,
    });
    let config = with(attention);
    assert!(config.moe.is_none() && config.ffn_hidden_size == 40);
    assert!(matches!(&config.position_embedding, PositionEmbedding::Rope(rope) if rope.base == 5e5));
    let written = FAMILY.settings(&config).unwrap();
    assert_eq!((&written["mamba_n_heads"], &written["num_local_experts"]), (&json!(1), &json!(0)));
    assert_eq!(wrong_key(&FAMILY, json!({ "mamba_n_heads": 5 })), "mamba_d_head");
}

#[test]
fn a_layer_of_a_file_is_two_of_ours() {
    let config = with(json!({}));
    let stored = |layout, name: &str| {
        let map = WeightMap::new(&FAMILY, &config, layout).unwrap();
        map.entry(name).unwrap().tensors[0].clone()
    };
    let norms = ["decoder.layers.2.norm.weight", "decoder.layers.3.pre_mlp_layernorm.weight"];
    let [before, behind] = norms.map(|name| stored(ExpertLayout::Apart, name).name);
    assert_eq!(before, "model.layers.1.input_layernorm.weight");
    assert_eq!(behind, "model.layers.1.post_attention_layernorm.weight");
    let expert = "decoder.layers.3.mlp.experts.local_experts.5.linear_fc1.weight";
    for (layout, name) in
        [(ExpertLayout::Apart, "input_linear.weight"), (ExpertLayout::Stacked, "experts.gate_up_proj")]
    {
        let tensor = stored(layout, expert);
        assert_eq!(tensor.name, format!("model.layers.1.block_sparse_moe.{name}"));
        assert_eq!(tensor.part.map(|part| (part.index, part.count)), Some((5, 8)));
    }
}
