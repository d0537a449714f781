//! Cohere 2 (Command R7B, Command A): blocks side by side that read one norm, no biases in norms,
//! and rotation in windowed layers only.

pub(super) mod config;
#[cfg(test)]
mod tests;

use super::llama;
use crate::huggingface::Family;

pub(super) static FAMILY: Family = Family {
    model_type: "cohere2",
    architecture: "Cohere2ForCausalLM",
    settings: config::SETTINGS,
    weights: &[llama::weights::WEIGHTS],
    ..Family::USUAL
};
