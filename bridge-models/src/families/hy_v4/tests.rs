//! Features of Hunyuan 4 beyond DeepSeek-V3.2. Import, export and reference values are tested for
//! all families in `huggingface/tests`.

use bridge_core::config::OutputGateForm;
use serde_json::{Value, json};

use super::FAMILY;
use crate::families::testing::{read_back, wrong_key};

/// Each head has keys of its own.
fn with(more: Value) -> Value {
    let mut all = json!({ "num_key_value_heads": 6 });
    all.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    all
}

#[test]
fn absent_settings_have_the_familys_defaults() {
    let config = read_back(&FAMILY, with(json!({ "num_hidden_layers": 7, "rms_norm_eps": 1e-3 })));
    assert!(config.attention_sinks && config.output_gate == Some(OutputGateForm::Element));
    let sources: Vec<_> = (0..7).map(|layer| config.choice_from(layer).unwrap_or(layer)).collect();
    assert_eq!(sources, [0, 1, 1, 1, 1, 5, 5]);
    let (indexer, streams, moe) = (config.indexer.unwrap(), config.streams.unwrap(), config.moe.unwrap());
    assert_eq!((indexer.heads, indexer.rotates_last, indexer.norm_epsilon), (16, true, 1e-3));
    assert_eq!((streams.count, streams.sinkhorn_iterations, streams.output_magnitude), (4, 0, 2.0));
    assert_eq!((moe.activation_clamp, moe.topk_scaling_factor, moe.num_experts), (Some(10.0), Some(2.827), 256));
}

#[test]
fn what_the_decoder_does_not_compute_is_refused() {
    assert_eq!(wrong_key(&FAMILY, with(json!({ "swiglu_limit": 0.0 }))), "swiglu_limit");
    assert_eq!(wrong_key(&FAMILY, with(json!({ "q_lora_rank": null }))), "q_lora_rank");
}
