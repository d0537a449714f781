//! ERNIE 4.5 without experts: a Llama with one switch for the biases of all linear layers, whose
//! heads are rotated in neighbouring pairs.

pub(super) mod config;
pub(super) mod gguf;
#[cfg(test)]
mod tests;

use super::llama;
use crate::huggingface::Family;

pub(super) static FAMILY: Family = Family {
    model_type: "ernie4_5",
    architecture: "Ernie4_5ForCausalLM",
    settings: config::SETTINGS,
    weights: &[llama::weights::WEIGHTS],
    ..Family::USUAL
};
