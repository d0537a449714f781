//! Qwen 3 without experts: a Llama whose queries and keys are normalized per head, and whose upper
//! layers may have a sliding window.

pub(super) mod gguf;
#[cfg(test)]
mod tests;

use super::llama;
use super::prelude::*;
use super::rows::LAYERS;

pub(super) static FAMILY: Family = Family {
    model_type: "qwen3",
    architecture: "Qwen3ForCausalLM",
    settings: SETTINGS,
    weights: &[QK_NORMS, llama::WEIGHTS],
    ..Family::USUAL
};

/// Settings; absent ones have the values of `Qwen3Config`.
const SETTINGS: &[Setting] = &[
    Setting::Rows(SIZES),
    Setting::KeyValueHeads(32),
    head_size(128),
    positions(32_768),
    Setting::Always(|c| c.qk_layernorm = true),
    Setting::Rows(LAYERS),
    SLIDING_WINDOW_UPPER_LAYERS,
];

/// Sliding window that only the upper layers may have.
pub(super) const SLIDING_WINDOW_UPPER_LAYERS: Setting = Setting::Keys { read: read_window, write: write_window };

/// A window of `sliding_window` tokens in the layers that `layer_types` names, or from number
/// `max_window_layers` on.
fn read_window(fields: &Fields, config: &mut DecoderConfig) -> Result<(), HfError> {
    let size = windows::switched_size(fields, Some(4096))?;
    windows::read_upper_layers(fields, config, size, 28)
}

fn write_window(config: &DecoderConfig, settings: &mut Map<String, Value>) {
    windows::write_switched(config, settings);
    if config.window_size.is_some() {
        let first = windows::windowed_layers(config).iter().position(|has_window| *has_window);
        settings.insert("max_window_layers".into(), json!(first.unwrap_or(config.num_layers)));
    }
}

/// Names of the parameters that Llama does not have.
pub(super) const QK_NORMS: &[WeightRule] = &RULES;

/// [`QK_NORMS`] for families whose files have other names than the state of a module.
pub(super) const QK_NORMS_IN_MODULE: &[WeightRule] = &stacked(RULES);

const RULES: [WeightRule; 2] = [
    layer!("self_attention.q_layernorm.weight", "self_attn.q_norm.weight"),
    layer!("self_attention.k_layernorm.weight", "self_attn.k_norm.weight"),
];
