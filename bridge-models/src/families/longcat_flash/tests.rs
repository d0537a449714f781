//! Features of LongCat-Flash. Import, export and reference values are tested for all families in
//! `huggingface/tests`.

use serde_json::{Value, json};

use super::FAMILY;
use crate::decoder::DecoderConfig;
use crate::families::testing::{read_back, wrong_key};

/// Keys that the family has under names of its own.
fn with(more: Value) -> Value {
    let mut all = json!({
        "num_layers": 3, "num_hidden_layers": 6, "ffn_hidden_size": 36, "num_key_value_heads": 6, "q_lora_rank": 6, "moe_topk": 2, "n_routed_experts": 5,
    });
    all.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    all
}

fn read(more: Value) -> DecoderConfig {
    read_back(&FAMILY, with(more))
}

#[test]
fn a_files_layer_is_two_of_which_the_first_has_experts_beside_it() {
    let config = read(json!({}));
    assert_eq!(config.num_layers, 6);
    assert_eq!((0..6).filter(|layer| config.moe_layer(*layer).is_some()).collect::<Vec<_>>(), [0, 2, 4]);
    assert_eq!((config.carried_into(1), config.carried_into(2)), (vec!["shortcut"], vec![]));
    let moe = config.moe.unwrap();
    assert_eq!((moe.num_identity_experts, moe.num_choices(), moe.topk_scaling_factor), (256, 261, Some(6.0)));
    assert!(moe.shortcut && moe.pre_softmax && moe.expert_bias);
    assert_eq!(read(json!({ "zero_expert_num": null })).moe.unwrap().num_identity_experts, 0);
}

#[test]
fn latent_vectors_are_scaled_by_their_ranks() {
    let config = read(json!({ "kv_lora_rank": 6 }));
    let latent = config.latent.unwrap();
    assert_eq!((latent.q_lora_rank, latent.kv_multiplier, latent.norm_epsilon), (Some(6), Some(2.0), 1e-6));
    assert_eq!(config.softmax_scale, 2.0 / 192_f64.sqrt());
}

#[test]
fn keys_that_contradict_each_other_are_refused() {
    for (key, value) in [
        ("num_hidden_layers", json!(3)),
        ("head_dim", json!(8)),
        ("zero_expert_num", json!(-1)),
        ("zero_expert_type", json!("copy")),
        ("mla_scale_q_lora", json!(false)),
        ("router_bias", json!(true)),
        ("num_key_value_heads", json!(3)),
    ] {
        assert_eq!(wrong_key(&FAMILY, with(json!({ key: value }))), key);
    }
}
