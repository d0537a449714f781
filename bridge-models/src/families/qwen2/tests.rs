//! Features of Qwen 2 beyond Llama. Import, export and reference values are tested for all families
//! in `huggingface/tests`.

use serde_json::json;

use super::FAMILY;
use crate::decoder::{DecoderConfig, LayerPattern, PositionEmbedding, RopeScaling};
use crate::families::testing::read_back;

#[test]
fn queries_keys_and_values_have_biases_and_nothing_else() {
    let config = read_back(&FAMILY, json!({}));
    assert_eq!((config.kv_channels, config.max_position_embeddings, config.norm.epsilon), (4, 32_768, 1e-6));
    assert!(config.qkv_bias && !config.proj_bias && !config.mlp_bias && !config.share_embeddings_and_output_weights);
    FAMILY.settings(&DecoderConfig { qkv_bias: false, ..config }).unwrap_err();
}

#[test]
fn upper_layers_may_have_a_window_and_the_context_may_grow_by_yarn() {
    let config = read_back(
        &FAMILY,
        json!({
            "use_sliding_window": true, "sliding_window": 8, "max_window_layers": 2, "max_position_embeddings": 128,
            "rope_scaling": { "type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32 },
        }),
    );
    let upper = LayerPattern::Listed(vec![false, false, true, true]);
    assert_eq!((config.window_size, config.window_layers), (Some(7), upper));
    let PositionEmbedding::Rope(rope) = config.position_embedding else { panic!("rotary positions") };
    assert!(matches!(rope.scaling, Some(RopeScaling::Yarn(yarn)) if yarn.original_max_position_embeddings == 32));
}
