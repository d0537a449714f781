//! Qwen 3 with experts in all layers or some; queries and keys are normalized per head.

pub(super) mod config;
#[cfg(test)]
mod tests;

use super::{llama, mixture, qwen3};
use crate::huggingface::Family;

pub(super) static FAMILY: Family = Family {
    model_type: "qwen3_moe",
    architecture: "Qwen3MoeForCausalLM",
    settings: config::SETTINGS,
    weights: &[qwen3::weights::QK_NORMS, mixture::APART, mixture::STACKED, llama::weights::WEIGHTS],
    ..Family::USUAL
};
