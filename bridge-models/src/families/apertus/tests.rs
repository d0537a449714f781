//! Features of Apertus beyond Llama. Import, export and reference values are tested for all
//! families in `huggingface/tests`.

use bridge_core::config::Activation;
use serde_json::json;

use super::FAMILY;
use crate::decoder::{PositionEmbedding, RopeScaling};
use crate::families::testing::read_back;
use crate::huggingface::{ExpertLayout, WeightMap};

#[test]
fn absent_settings_have_the_familys_defaults() {
    let config = read_back(&FAMILY, json!({ "rope_theta": 5e5 }));
    assert_eq!((config.activation, config.norm.epsilon), (Activation::Xielu, 1e-5));
    assert!(config.qk_layernorm && !config.gated_linear_unit);
    let PositionEmbedding::Rope(rope) = config.position_embedding else { panic!("rotary positions") };
    assert_eq!(rope.base, 12e6, "the base of the table that is not there");
    let Some(RopeScaling::Llama3 { factor, original_max_position_embeddings, .. }) = rope.scaling else {
        panic!("scaled frequencies")
    };
    assert_eq!((factor, original_max_position_embeddings), (8.0, 8192));
    let plain = read_back(&FAMILY, json!({ "rope_parameters": { "rope_type": "default", "rope_theta": 5e5 } }));
    let PositionEmbedding::Rope(rope) = plain.position_embedding else { panic!("rotary positions") };
    assert_eq!((rope.base, rope.scaling), (5e5, None));
}

#[test]
fn slopes_are_parameters_of_each_layer_and_scalars_have_no_dimension() {
    let config = read_back(&FAMILY, json!({}));
    let map = WeightMap::new(&FAMILY, &config, ExpertLayout::Apart).unwrap();
    let shape = |name: &str| {
        let entry = map.entry(&format!("decoder.layers.2.mlp.activation_func.{name}")).unwrap();
        (entry.tensors[0].name.clone(), entry.tensors[0].shape.clone())
    };
    assert_eq!(shape("alpha_n"), ("model.layers.2.mlp.act_fn.alpha_n".into(), vec![1]));
    assert_eq!(shape("eps"), ("model.layers.2.mlp.act_fn.eps".into(), Vec::new()));
    let other = read_back(&FAMILY, json!({ "hidden_act": "relu2", "attention_bias": true }));
    assert!(other.activation == Activation::SquaredRelu && other.proj_bias);
}
