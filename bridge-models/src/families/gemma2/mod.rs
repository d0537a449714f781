//! Gemma 2: norms before and after blocks, capped scores and logits, and a window in every other
//! layer.

pub(super) mod config;
#[cfg(test)]
mod tests;
pub(super) mod weights;

use super::llama;
use crate::huggingface::Family;

pub(super) static FAMILY: Family = Family {
    model_type: "gemma2",
    architecture: "Gemma2ForCausalLM",
    settings: config::SETTINGS,
    weights: &[weights::NORMS, llama::weights::WEIGHTS],
    ..Family::USUAL
};
