//! Features of Sarvam 105B. Import, export and reference values are tested for all families in
//! `huggingface/tests`.

use serde_json::json;

use super::FAMILY;
use crate::decoder::{PositionEmbedding, RopeScaling};
use crate::families::testing::read_back;

#[test]
fn absent_settings_have_the_familys_defaults() {
    let config = read_back(&FAMILY, json!({ "num_key_value_heads": 6 }));
    assert_eq!(config.latent.as_ref().unwrap().q_lora_rank, None);
    assert_eq!((0..4).filter(|layer| config.moe_layer(*layer).is_none()).collect::<Vec<_>>(), [0]);
    let moe = config.moe.unwrap();
    assert_eq!((moe.num_experts, moe.topk, moe.num_groups, moe.topk_scaling_factor), (128, 8, None, Some(2.5)));
}

#[test]
fn the_first_files_have_another_name_for_yarn() {
    let table = json!({ "type": "deepseek_yarn", "factor": 40, "original_max_position_embeddings": 4096 });
    let config = read_back(&FAMILY, json!({ "num_key_value_heads": 6, "rope_scaling": table, "head_dim": 576 }));
    let PositionEmbedding::Rope(rope) = config.position_embedding else { panic!("it rotates") };
    assert!(matches!(rope.scaling, Some(RopeScaling::Yarn(yarn)) if yarn.factor == 40.0));
}
