//! Features of Llama 4. Import, export and reference values are tested for all families in
//! `huggingface/tests`.

use bridge_core::config::RouterScoreFunction;
use serde_json::json;

use super::FAMILY;
use crate::decoder::{LayerPattern, PositionEmbedding, QueryScaleConfig};
use crate::families::testing::{parse, read_back, wrong_key};
use crate::huggingface::{ExpertLayout, WeightMap};

const UNROTATED_LAST: [bool; 4] = [false, false, false, true];

#[test]
fn absent_settings_have_the_familys_defaults() {
    let config = read_back(&FAMILY, json!({ "num_attention_heads": 8, "num_key_value_heads": null }));
    assert_eq!((config.kv_channels, config.num_query_groups, config.ffn_hidden_size), (128, 8, 16_384));
    assert_eq!((config.window_size, config.window_chunks), (Some(8191), true));
    assert_eq!(config.window_layers, LayerPattern::Listed(UNROTATED_LAST.map(|last| !last).to_vec()));
    assert_eq!(config.no_rope_layers, LayerPattern::Listed(UNROTATED_LAST.to_vec()));
    assert!(config.qk_l2_norm && config.qk_layernorm_after_rope && !config.qkv_bias);
    assert!(
        matches!(&config.position_embedding, PositionEmbedding::Rope(rope) if rope.interleaved && rope.base == 5e5)
    );
    let scale = QueryScaleConfig { beta: 0.1, length: 8192, first: 1, unrotated_only: true };
    assert_eq!(config.query_scale, Some(scale));
    let moe = config.moe.unwrap();
    assert_eq!((moe.num_experts, moe.topk, moe.layers, moe.ffn_hidden_size), (16, 1, LayerPattern::All, 36));
    assert_eq!((moe.score_function, moe.shared_expert_intermediate_size), (RouterScoreFunction::Sigmoid, Some(36)));
    assert!(moe.raw_scores && moe.weighted_inputs);
}

#[test]
fn layers_have_what_the_file_says() {
    let config = read_back(
        &FAMILY,
        json!({
            "no_rope_layers": [0, 1, 1, 0, 1], "attention_chunk_size": 6, "interleave_moe_layer_step": 2,
            "attn_temperature_tuning": 4, "floor_scale": 3, "use_qk_norm": false, "attention_bias": true,
        }),
    );
    assert_eq!(config.no_rope_layers, LayerPattern::Listed(vec![true, false, false, true]));
    assert_eq!((config.window_size, config.qk_l2_norm, config.proj_bias), (Some(5), false, true));
    assert_eq!(config.query_scale.map(|scale| scale.length), Some(3));
    assert_eq!(config.moe.unwrap().layers, LayerPattern::Listed(vec![false, true, false, true]));
    let types = ["chunked_attention", "full_attention", "full_attention", "full_attention"];
    let said = json!({ "no_rope_layers": [0, 0, 0, 0], "layer_types": types, "moe_layers": [0], "attn_scale": 0 });
    let config = read_back(&FAMILY, said);
    assert_eq!((config.position_embedding, config.qk_l2_norm), (PositionEmbedding::None, false));
    assert_eq!(config.window_layers, LayerPattern::Listed(vec![true, false, false, false]));
    assert!(config.query_scale.is_none() && config.moe.unwrap().layers == config.window_layers);
    let config = read_back(&FAMILY, json!({ "no_rope_layers": [], "attention_chunk_size": null }));
    assert_eq!((config.window_size, config.window_chunks), (None, false));
}

#[test]
fn matrices_of_experts_are_in_one_tensor_with_inputs_as_rows() {
    let config = parse(&FAMILY, json!({ "head_dim": 4, "num_local_experts": 5, "intermediate_size": 7 })).unwrap();
    for layout in [ExpertLayout::Apart, ExpertLayout::Stacked] {
        let map = WeightMap::new(&FAMILY, &config, layout).unwrap();
        for (name, stored, shape) in
            [("linear_fc1", "gate_up_proj", [5, 24, 14]), ("linear_fc2", "down_proj", [5, 7, 24])]
        {
            let entry = map.entry(&format!("decoder.layers.1.mlp.experts.local_experts.3.{name}.weight")).unwrap();
            assert_eq!(entry.tensors[0].name, format!("model.layers.1.feed_forward.experts.{stored}"));
            assert_eq!(entry.tensors[0].whole_shape(), shape);
        }
    }
}

#[test]
fn wrong_values_are_named() {
    let chunked = json!({ "attention_chunk_size": null, "layer_types": vec!["chunked_attention"; 4] });
    assert_eq!(wrong_key(&FAMILY, chunked), "attention_chunk_size");
    assert_eq!(wrong_key(&FAMILY, json!({ "no_rope_layers": [1, 1] })), "no_rope_layers");
    assert_eq!(wrong_key(&FAMILY, json!({ "moe_layers": ["first"] })), "moe_layers");
}
