//! Features of Hunyuan models with experts. Import, export and reference values are tested for all
//! families in `huggingface/tests`.

use serde_json::json;

use super::FAMILY;
use crate::families::testing::{read_back, wrong_key};

#[test]
fn every_layer_has_experts_and_a_shared_one_of_the_same_size() {
    let moe = read_back(&FAMILY, json!({ "num_experts": 8, "moe_topk": 2 })).moe.unwrap();
    assert_eq!((moe.num_experts, moe.topk, moe.ffn_hidden_size), (8, 2, 36));
    assert_eq!(moe.shared_expert_intermediate_size, Some(36));
    assert!(!moe.pre_softmax && moe.layers.includes(0));
}

#[test]
fn a_list_of_chosen_experts_has_one_number() {
    let moe = read_back(&FAMILY, json!({ "num_experts": 8, "moe_topk": [3, 3, 3, 3] })).moe.unwrap();
    assert_eq!(moe.topk, 3);
    for chosen in [json!([3, 3, 2, 3]), json!([]), json!([0, 0, 0, 0]), json!("all")] {
        assert_eq!(wrong_key(&FAMILY, json!({ "num_experts": 8, "moe_topk": chosen })), "moe_topk");
    }
}
