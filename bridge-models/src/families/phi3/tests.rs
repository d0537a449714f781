//! Features of Phi-3 beyond Llama. Import, export and reference values are tested for all families
//! in `huggingface/tests`.

use serde_json::{Value, json};

use super::FAMILY;
use crate::decoder::{DecoderConfig, PositionEmbedding, RopeConfig, RopeScaling};
use crate::families::testing::{read_back, wrong_key};
use crate::huggingface::{ExpertLayout, WeightMap};

fn rope(more: Value) -> RopeConfig {
    match read_back(&FAMILY, more).position_embedding {
        PositionEmbedding::Rope(rope) => rope,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_part_of_the_head_may_be_rotated() {
    assert_eq!(rope(json!({})).percent, 1.0);
    for more in [
        json!({ "partial_rotary_factor": 0.5 }),
        json!({ "rope_parameters": { "partial_rotary_factor": 0.5, "rope_theta": 10000.0 } }),
    ] {
        assert_eq!(rope(more).rotary_size(4), 2);
    }
    assert_eq!(wrong_key(&FAMILY, json!({ "partial_rotary_factor": 0.8 })), "partial_rotary_factor");
}

#[test]
fn longrope_counts_from_the_length_beside_its_table() {
    let table = json!({ "type": "su", "short_factor": [1.0, 1.5], "long_factor": [1.0, 4.0] });
    let scaling = |more: Value| {
        let mut settings = json!({ "rope_scaling": table, "max_position_embeddings": 8192 });
        settings.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        match rope(settings).scaling {
            Some(RopeScaling::LongRope { original_max_position_embeddings, attention_factor, .. }) => {
                (original_max_position_embeddings, attention_factor)
            }
            other => panic!("{other:?}"),
        }
    };
    let factor = |growth: f64, length: f64| (1.0 + growth.ln() / length.ln()).sqrt();
    assert_eq!(scaling(json!({ "original_max_position_embeddings": 1024 })), (1024, factor(8.0, 1024.0)));
    assert_eq!(scaling(json!({})), (4096, factor(2.0, 4096.0)));
    let linear = json!({ "rope_scaling": { "type": "linear", "factor": 2.0 } });
    assert_eq!(wrong_key(&FAMILY, linear), "rope_scaling.rope_type");
}

#[test]
fn fused_matrices_are_one_tensor_each() {
    let config = DecoderConfig { padded_vocab_size: 50, ..read_back(&FAMILY, json!({})) };
    let map = WeightMap::new(&FAMILY, &config, ExpertLayout::Apart).unwrap();
    let tensors = |name: &str| -> Vec<(String, Vec<usize>)> {
        let entry = map.entry(&format!("decoder.layers.3.{name}.weight")).unwrap();
        entry.tensors.iter().map(|tensor| (tensor.name.clone(), tensor.shape.clone())).collect()
    };
    let qkv = ("model.layers.3.self_attn.qkv_proj.weight".to_owned(), vec![48, 24]);
    assert_eq!(tensors("self_attention.linear_qkv"), [qkv]);
    assert_eq!(tensors("mlp.linear_fc1"), [("model.layers.3.mlp.gate_up_proj.weight".to_owned(), vec![72, 24])]);
}
