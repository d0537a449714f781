//! Qwen 2 and 2.5 without experts: a Llama with biases of queries, keys and values, whose upper
//! layers may have a sliding window.

pub(super) mod config;
pub(super) mod gguf;
#[cfg(test)]
mod tests;

use super::llama;
use crate::huggingface::Family;

pub(super) static FAMILY: Family = Family {
    model_type: "qwen2",
    architecture: "Qwen2ForCausalLM",
    settings: config::SETTINGS,
    weights: &[llama::weights::WEIGHTS],
    ..Family::USUAL
};
