//! Gemma: a Llama with norms whose weights are stored minus one, and with an embedding that is
//! scaled by the root of the width.

pub(super) mod config;
pub(super) mod gguf;
#[cfg(test)]
mod tests;

use super::llama;
use crate::huggingface::Family;

pub(super) static FAMILY: Family = Family {
    model_type: "gemma",
    architecture: "GemmaForCausalLM",
    settings: config::SETTINGS,
    weights: &[llama::weights::WEIGHTS],
    ..Family::USUAL
};
