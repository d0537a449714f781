//! Features of LFM2 with experts. Import, export and reference values are tested for all families
//! in `huggingface/tests`.

use bridge_core::config::RouterScoreFunction;
use serde_json::json;

use super::FAMILY;
use crate::decoder::HybridBlock;
use crate::families::testing::{read_back, wrong_key};

#[test]
fn the_first_layers_have_no_experts() {
    let types = json!(["conv", "full_attention", "conv", "conv"]);
    let of = |more: serde_json::Value| {
        let mut settings = json!({ "layer_types": types });
        settings.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        read_back(&FAMILY, settings)
    };
    let config = of(json!({}));
    let layers = config.hybrid.unwrap().layers;
    assert_eq!([layers[1], layers[3], layers[5]], [HybridBlock::Mlp, HybridBlock::Mlp, HybridBlock::Moe]);
    let moe = config.moe.unwrap();
    assert_eq!((moe.num_experts, moe.topk, moe.ffn_hidden_size, moe.sum_epsilon), (32, 4, 1792, 1e-6));
    assert!(moe.score_function == RouterScoreFunction::Sigmoid && moe.expert_bias && !moe.raw_scores);
    let moe = of(json!({
        "num_dense_layers": 0, "use_expert_bias": false, "norm_topk_prob": false, "routed_scaling_factor": 2.5,
    }));
    let moe = moe.moe.unwrap();
    assert_eq!((moe.expert_bias, moe.raw_scores, moe.topk_scaling_factor), (false, true, Some(2.5)));
    assert!(of(json!({ "num_dense_layers": 4 })).moe.is_none());
    assert_eq!(wrong_key(&FAMILY, json!({})), "layer_types");
    assert_eq!(wrong_key(&FAMILY, json!({ "layer_types": types, "num_dense_layers": -1 })), "num_dense_layers");
}
