//! Features of DeepSeek-V3.2. Import, export and reference values are tested for all families in
//! `huggingface/tests`.

use serde_json::{Value, json};

use super::FAMILY;
use crate::families::testing::{read_back, wrong_key};

/// Each head has keys of its own.
fn with(more: Value) -> Value {
    let mut all = json!({ "num_key_value_heads": 6, "q_lora_rank": 10 });
    all.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    all
}

#[test]
fn indexers_have_sizes_of_their_own() {
    let of = |more| read_back(&FAMILY, with(more)).indexer.unwrap();
    let usual = of(json!({}));
    assert_eq!((usual.heads, usual.head_size, usual.topk, usual.norm_epsilon), (64, 128, 2048, 1e-6));
    assert!(!usual.interleaved && usual.loss_coeff == 0.0);
    let own = of(json!({ "index_n_heads": 3, "index_head_dim": 70, "index_topk": 5, "rms_norm_eps": 1e-3 }));
    assert_eq!((own.heads, own.head_size, own.topk, own.norm_epsilon), (3, 70, 5, 1e-6));
}

#[test]
fn dense_layers_are_counted_or_named() {
    let dense = |more| {
        let config = read_back(&FAMILY, with(more));
        (0..4).filter(|layer| config.moe_layer(*layer).is_none()).collect::<Vec<_>>()
    };
    assert_eq!((dense(json!({})), dense(json!({ "first_k_dense_replace": 1 }))), (vec![0, 1, 2], vec![0]));
    let types = json!({ "mlp_layer_types": ["sparse", "dense", "sparse", "sparse"], "first_k_dense_replace": 2 });
    assert_eq!(dense(types), [1]);
}

#[test]
fn what_the_family_does_not_have_is_named() {
    assert_eq!(wrong_key(&FAMILY, with(json!({ "q_lora_rank": null }))), "q_lora_rank");
    assert_eq!(wrong_key(&FAMILY, with(json!({ "rope_interleave": false }))), "rope_interleave");
    assert_eq!(wrong_key(&FAMILY, with(json!({ "index_topk": 0 }))), "index_topk");
}
