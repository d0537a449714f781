//! GLM-4-9B and GLM-Edge: a Llama with biases of queries, keys and values, and with heads of which
//! the first half is rotated in neighbouring pairs.

pub(super) mod config;
#[cfg(test)]
mod tests;
pub(super) mod weights;

use super::llama;
use crate::huggingface::Family;

pub(super) static FAMILY: Family = Family {
    model_type: "glm",
    architecture: "GlmForCausalLM",
    settings: config::SETTINGS,
    weights: &[weights::GATE_UP, llama::weights::WEIGHTS],
    ..Family::USUAL
};
