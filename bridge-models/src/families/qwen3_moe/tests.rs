//! Features of Qwen 3 with experts. Import, export and reference values are tested for all families
//! in `huggingface/tests`.

use serde_json::{Value, json};

use super::FAMILY;
use crate::families::testing::{read_back, wrong_key};

fn layers_with_experts(more: Value) -> Vec<usize> {
    let config = read_back(&FAMILY, more);
    (0..4).filter(|layer| config.moe_layer(*layer).is_some()).collect()
}

#[test]
fn experts_are_in_the_layers_that_the_file_says() {
    assert_eq!(layers_with_experts(json!({})), [0, 1, 2, 3]);
    assert_eq!(layers_with_experts(json!({ "decoder_sparse_step": 2 })), [1, 3]);
    assert_eq!(layers_with_experts(json!({ "mlp_only_layers": [0, 3] })), [1, 2]);
    assert_eq!(layers_with_experts(json!({ "decoder_sparse_step": 2, "mlp_only_layers": [1] })), [3]);
}

#[test]
fn the_number_of_experts_has_two_names() {
    let moe = |more| read_back(&FAMILY, more).moe.unwrap();
    assert_eq!((moe(json!({})).num_experts, moe(json!({})).topk, moe(json!({})).ffn_hidden_size), (128, 8, 768));
    assert_eq!(moe(json!({ "num_experts": 9 })).num_experts, 9);
    assert_eq!(moe(json!({ "num_local_experts": 10 })).num_experts, 10);
    assert!(moe(json!({})).pre_softmax && !moe(json!({ "norm_topk_prob": true })).pre_softmax);
}

#[test]
fn a_window_is_in_all_layers_if_it_is_used() {
    assert_eq!(read_back(&FAMILY, json!({ "sliding_window": 8 })).window_size, None);
    assert_eq!(read_back(&FAMILY, json!({ "sliding_window": 8, "use_sliding_window": true })).window_size, Some(7));
}

#[test]
fn wrong_layers_are_named() {
    for layers in [json!("all"), json!([-1]), json!([1.5])] {
        assert_eq!(wrong_key(&FAMILY, json!({ "mlp_only_layers": layers })), "mlp_only_layers");
    }
}
