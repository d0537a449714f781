//! Features of GLM-4.7-Flash. Import, export and reference values are tested for all families in
//! `huggingface/tests`.

use serde_json::{Value, json};

use super::FAMILY;
use crate::decoder::PositionEmbedding;
use crate::families::testing::{read_back, wrong_key};

/// Each head has keys of its own.
fn with(more: Value) -> Value {
    let mut all = json!({ "num_key_value_heads": 6 });
    all.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    all
}

#[test]
fn absent_settings_have_the_familys_defaults() {
    let config = read_back(&FAMILY, with(json!({})));
    let latent = config.latent.clone().unwrap();
    assert_eq!((latent.q_lora_rank, latent.kv_lora_rank, latent.v_head_dim), (Some(768), 512, 256));
    assert_eq!((config.kv_channels, config.rotary_head(), config.norm.epsilon), (256, 64, 1e-5));
    let dense: Vec<usize> = (0..4).filter(|layer| config.moe_layer(*layer).is_none()).collect();
    let moe = config.moe.unwrap();
    assert_eq!((dense, moe.num_experts, moe.topk), (vec![0], 64, 4));
    assert_eq!(moe.topk_scaling_factor, Some(1.8));
}

#[test]
fn files_name_the_dense_layers() {
    let types = ["sparse", "dense", "sparse", "dense"];
    let config = read_back(&FAMILY, with(json!({ "mlp_layer_types": types, "rope_interleave": false })));
    assert_eq!((0..4).filter(|layer| config.moe_layer(*layer).is_some()).collect::<Vec<_>>(), [0, 2]);
    assert!(matches!(&config.position_embedding, PositionEmbedding::Rope(rope) if !rope.interleaved));
    let null = read_back(&FAMILY, with(json!({ "q_lora_rank": null, "num_nextn_predict_layers": 1 })));
    assert_eq!((null.latent.unwrap().q_lora_rank, null.mtp_num_layers), (None, 1));
    for types in [json!(["sparse"]), json!(["sparse", "dense", "sparse", "moe"]), json!("dense")] {
        assert_eq!(wrong_key(&FAMILY, with(json!({ "mlp_layer_types": types }))), "mlp_layer_types");
    }
}
