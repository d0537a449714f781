//! Qwen 3 without experts: a Llama whose queries and keys are normalized per head, and whose upper
//! layers may have a sliding window.

pub(super) mod config;
pub(super) mod gguf;
#[cfg(test)]
mod tests;
pub(super) mod weights;

use super::llama;
use crate::huggingface::Family;

pub(super) static FAMILY: Family = Family {
    model_type: "qwen3",
    architecture: "Qwen3ForCausalLM",
    settings: config::SETTINGS,
    weights: &[weights::QK_NORMS, llama::weights::WEIGHTS],
    ..Family::USUAL
};
