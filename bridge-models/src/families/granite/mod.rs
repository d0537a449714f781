//! Granite: a Llama with factors on the embedding, on the outputs of blocks, on scores and on
//! logits.

pub(super) mod config;
#[cfg(test)]
mod tests;

use super::llama;
use crate::huggingface::Family;

pub(super) static FAMILY: Family = Family {
    model_type: "granite",
    architecture: "GraniteForCausalLM",
    settings: config::SETTINGS,
    weights: &[llama::weights::WEIGHTS],
    ..Family::USUAL
};
