//! SmolLM3: a Llama of which every fourth layer has no rotary embedding.

pub(super) mod config;
#[cfg(test)]
mod tests;

use super::llama;
use crate::huggingface::Family;

pub(super) static FAMILY: Family = Family {
    model_type: "smollm3",
    architecture: "SmolLM3ForCausalLM",
    settings: config::SETTINGS,
    weights: &[llama::weights::WEIGHTS],
    ..Family::USUAL
};
