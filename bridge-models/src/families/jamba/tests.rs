//! Features of Jamba. Import, export and reference values are tested for all families in
//! `huggingface/tests`.

use serde_json::json;

use super::FAMILY;
use crate::decoder::{HybridBlock, PositionEmbedding};
use crate::families::testing::{read_back, wrong_key};

#[test]
fn periods_say_which_layers_have_attention_and_experts() {
    let config = read_back(&FAMILY, json!({ "num_hidden_layers": 6 }));
    assert_eq!(config.position_embedding, PositionEmbedding::None);
    let hybrid = config.hybrid.unwrap();
    let mixers: Vec<HybridBlock> = hybrid.layers.iter().copied().step_by(2).collect();
    let expected = |layer| if layer == 4 { HybridBlock::Attention } else { HybridBlock::Selective };
    assert_eq!(mixers, (0..6).map(expected).collect::<Vec<_>>());
    assert_eq!((hybrid.layers[1], hybrid.layers[3]), (HybridBlock::Mlp, HybridBlock::Moe));
    assert_eq!((hybrid.mamba.inner_size(), hybrid.mamba.state_size, hybrid.mamba.dt_rank), (48, 16, None));
    let moe = config.moe.unwrap();
    assert_eq!((moe.num_experts, moe.topk, moe.pre_softmax), (16, 2, true));
    let other =
        json!({ "attn_layer_period": 2, "attn_layer_offset": 0, "expert_layer_period": 1, "expert_layer_offset": 0 });
    assert!(read_back(&FAMILY, other).hybrid.unwrap().layers.contains(&HybridBlock::Attention));
    // Layers with one expert have a dense block; none may have attention.
    let dense = read_back(&FAMILY, json!({ "num_experts": 1 }));
    assert!(dense.moe.is_none() && !dense.has_block(HybridBlock::Moe));
}

#[test]
fn sizes_of_time_steps_are_derived_or_said() {
    let rank = |more| read_back(&FAMILY, more).hybrid.unwrap().mamba.time_step_rank(24);
    assert_eq!(
        (rank(json!({})), rank(json!({ "mamba_dt_rank": "auto" })), rank(json!({ "mamba_dt_rank": 5 }))),
        (2, 2, 5)
    );
    for (key, value) in [
        ("attn_layer_offset", json!(8)),
        ("expert_layer_offset", json!(2)),
        ("mamba_inner_layernorms", json!(false)),
        ("mamba_dt_rank", json!("all")),
        ("hidden_act", json!("gelu")),
    ] {
        assert_eq!(wrong_key(&FAMILY, json!({ key: value })), key);
    }
}
