//! Features of GPT-OSS beyond Llama. Import, export and reference values are tested for all
//! families in `huggingface/tests`.

use bridge_core::config::Activation;
use serde_json::json;

use super::FAMILY;
use crate::decoder::{PositionEmbedding, RopeScaling};
use crate::families::testing::{parse, read_back, wrong_key};
use crate::huggingface::{ExpertLayout, WeightMap};

#[test]
fn absent_settings_have_the_familys_defaults() {
    let config = read_back(&FAMILY, json!({}));
    assert_eq!((config.kv_channels, config.max_position_embeddings, config.norm.epsilon), (64, 131_072, 1e-5));
    assert_eq!(
        (config.activation, config.activation_clamp, config.linear_offset),
        (Activation::QuickGelu, Some(7.0), 1.0)
    );
    assert!(config.attention_sinks && config.qkv_bias && config.proj_bias && config.mlp_bias);
    let windowed: Vec<bool> = (0..4).map(|layer| config.window_layers.includes(layer)).collect();
    assert_eq!((config.window_size, windowed), (Some(127), vec![true, false, true, false]));
    let PositionEmbedding::Rope(rope) = &config.position_embedding else { panic!("{:?}", config.position_embedding) };
    let Some(RopeScaling::Yarn(yarn)) = &rope.scaling else { panic!("{rope:?}") };
    assert_eq!(
        (rope.base, yarn.factor, yarn.original_max_position_embeddings, yarn.truncate),
        (150_000.0, 32.0, 4096, false)
    );
    let moe = config.moe.unwrap();
    assert_eq!((moe.num_experts, moe.topk, moe.ffn_hidden_size, moe.router_bias), (128, 4, 36, true));
    let empty = read_back(&FAMILY, json!({ "rope_scaling": {} }));
    assert_eq!(empty.position_embedding, config.position_embedding);
    let empty = read_back(&FAMILY, json!({ "rope_parameters": {} }));
    assert!(matches!(&empty.position_embedding, PositionEmbedding::Rope(rope) if rope.scaling.is_none()));
    let plain = read_back(&FAMILY, json!({ "rope_parameters": { "rope_type": "default" }, "attention_bias": false }));
    assert!(matches!(&plain.position_embedding, PositionEmbedding::Rope(rope) if rope.scaling.is_none()));
    assert!(!plain.qkv_bias && !plain.proj_bias && plain.mlp_bias);
}

/// As `inv_freq` of transformers 5.24, which has other values for each of these lengths.
#[test]
fn keys_beside_an_absent_table_override_the_usual_one() {
    let usual = json!({
        "rope_type": "yarn", "factor": 32.0, "truncate": false, "original_max_position_embeddings": 16,
        "rope_theta": 500.0,
    });
    let said = read_back(&FAMILY, json!({ "rope_parameters": usual }));
    for table in ["rope_scaling", "rope_parameters"] {
        let beside = json!({ table: null, "original_max_position_embeddings": 16, "rope_theta": 500.0 });
        assert_eq!(read_back(&FAMILY, beside), said);
    }
    // Half as many frequencies fit no whole head.
    assert_eq!(wrong_key(&FAMILY, json!({ "partial_rotary_factor": 0.5 })), "partial_rotary_factor");
}

#[test]
fn null_means_another_size_than_absence() {
    let sizes = json!({ "num_key_value_heads": null, "head_dim": null });
    let config = parse(&FAMILY, sizes).unwrap();
    assert_eq!((config.num_query_groups, config.kv_channels), (6, 4));
}

#[test]
fn what_the_decoder_does_not_compute_is_refused() {
    for (key, settings) in [
        ("swiglu_alpha", json!({ "swiglu_alpha": 1.0 })),
        ("hidden_act", json!({ "hidden_act": "gelu" })),
        ("layer_types", json!({ "layer_types": ["full_attention"] })),
    ] {
        assert_eq!(wrong_key(&FAMILY, settings), key);
    }
}

#[test]
fn the_gates_outputs_take_turns_with_the_others() {
    let sizes = json!({ "hidden_size": 3, "intermediate_size": 2, "num_local_experts": 4, "num_attention_heads": 3 });
    let config = parse(&FAMILY, sizes).unwrap();
    let map = WeightMap::new(&FAMILY, &config, ExpertLayout::Apart).unwrap();
    let expert = "decoder.layers.1.mlp.experts.local_experts.2.linear_fc1";
    let entry = map.entry(&format!("{expert}.weight")).unwrap();
    assert_eq!(entry.tensors[0].name, "model.layers.1.mlp.experts.gate_up_proj");
    assert_eq!((entry.tensors[0].start(), entry.tensors[0].whole_shape()), (2 * 12, vec![4, 3, 4]));
    // Two rows of the gate, then two of the values; a row has a value for each of three inputs.
    let rows = [[0.0, 1.0, 2.0], [10.0, 11.0, 12.0], [20.0, 21.0, 22.0], [30.0, 31.0, 32.0]];
    let stored = &entry.split(rows.as_flattened())[0].values;
    assert_eq!(*stored, [0.0, 20.0, 10.0, 30.0, 1.0, 21.0, 11.0, 31.0, 2.0, 22.0, 12.0, 32.0]);
    let bias = map.entry(&format!("{expert}.bias")).unwrap();
    assert_eq!(bias.split(&[1.0, 2.0, 3.0, 4.0])[0].values, [1.0, 3.0, 2.0, 4.0]);
}
