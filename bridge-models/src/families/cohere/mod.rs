//! Cohere (Command R): a Cohere 2 without windows, whose layers are all rotated. Queries and keys
//! may have norms with weights for each head.

mod config;
pub(super) mod gguf;
#[cfg(test)]
mod tests;
mod weights;

use super::llama;
use crate::huggingface::Family;

pub(super) static FAMILY: Family = Family {
    model_type: "cohere",
    architecture: "CohereForCausalLM",
    settings: config::SETTINGS,
    weights: &[weights::QK_NORMS, llama::weights::WEIGHTS],
    ..Family::USUAL
};
