//! StarCoder 2: LayerNorm, biases everywhere, a plain feed-forward block, rotary positions and a
//! sliding window.

mod config;
pub(super) mod gguf;
#[cfg(test)]
mod tests;
pub(super) mod weights;

use super::llama;
use crate::huggingface::Family;

pub(super) static FAMILY: Family = Family {
    model_type: "starcoder2",
    architecture: "Starcoder2ForCausalLM",
    settings: config::SETTINGS,
    weights: &[weights::OWN, weights::NORM_BIASES, llama::weights::WEIGHTS],
    ..Family::USUAL
};
