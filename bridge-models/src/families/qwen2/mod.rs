//! Qwen 2 and 2.5 without experts: a Llama with biases of queries, keys and values, whose upper
//! layers may have a sliding window.

pub(super) mod gguf;
#[cfg(test)]
mod tests;

use super::llama;
use super::prelude::*;
use super::qwen3::SLIDING_WINDOW_UPPER_LAYERS;

pub(super) static FAMILY: Family = Family {
    model_type: "qwen2",
    architecture: "Qwen2ForCausalLM",
    settings: SETTINGS,
    weights: &[llama::WEIGHTS],
    ..Family::USUAL
};

/// Settings; absent ones have the values of `Qwen2Config`.
pub(super) const SETTINGS: &[Setting] = &[
    Setting::Rows(SIZES),
    Setting::KeyValueHeads(32),
    HEAD_SIZE,
    positions(32_768),
    Setting::Rows(BLOCKS),
    Setting::Always(|c| c.qkv_bias = true),
    rms_norm_epsilon(1e-6),
    tied_embeddings(false),
    ROPE,
    SLIDING_WINDOW_UPPER_LAYERS,
];
