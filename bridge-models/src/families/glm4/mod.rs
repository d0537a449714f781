//! GLM-4 (0414): norms before and after blocks, half of each head rotated in neighbouring pairs,
//! gate and up in one matrix.

mod config;
pub(super) mod gguf;
#[cfg(test)]
mod tests;
mod weights;

use super::{glm, llama};
use crate::huggingface::Family;

pub(super) static FAMILY: Family = Family {
    model_type: "glm4",
    architecture: "Glm4ForCausalLM",
    settings: config::SETTINGS,
    weights: &[weights::NORMS, glm::weights::GATE_UP, llama::weights::WEIGHTS],
    ..Family::USUAL
};
