//! Nemotron-4 and Minitron: LayerNorm whose weights are stored minus one, a feed-forward block
//! without a gate that squares its ReLU, and heads of which the first half is rotated.

mod config;
pub(super) mod gguf;
#[cfg(test)]
mod tests;

use super::{arcee, llama, starcoder2};
use crate::huggingface::Family;

pub(super) static FAMILY: Family = Family {
    model_type: "nemotron",
    architecture: "NemotronForCausalLM",
    settings: config::SETTINGS,
    weights: &[starcoder2::weights::NORM_BIASES, arcee::weights::UP, llama::weights::WEIGHTS],
    ..Family::USUAL
};
