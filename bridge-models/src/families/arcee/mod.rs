//! Arcee (AFM-4.5B): a Llama whose feed-forward block has no gate, and squares its ReLU.

pub(super) mod config;
pub(super) mod gguf;
#[cfg(test)]
mod tests;
pub(super) mod weights;

use super::llama;
use crate::huggingface::Family;

pub(super) static FAMILY: Family = Family {
    model_type: "arcee",
    architecture: "ArceeForCausalLM",
    settings: config::SETTINGS,
    weights: &[weights::UP, llama::weights::WEIGHTS],
    ..Family::USUAL
};
