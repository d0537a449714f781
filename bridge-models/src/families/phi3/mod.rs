//! Phi-3 and Phi-4: a Llama whose queries, keys and values are one matrix, and gate and up another.

mod config;
#[cfg(test)]
mod tests;
mod weights;

use super::llama;
use crate::huggingface::Family;

pub(super) static FAMILY: Family = Family {
    model_type: "phi3",
    architecture: "Phi3ForCausalLM",
    settings: config::SETTINGS,
    weights: &[weights::FUSED, llama::weights::WEIGHTS],
    ..Family::USUAL
};
