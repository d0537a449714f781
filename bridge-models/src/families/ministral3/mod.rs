//! Ministral 3: a Mistral with YaRN, whose queries grow with the position.

pub(super) mod config;
#[cfg(test)]
mod tests;

use super::llama;
use crate::huggingface::Family;

pub(super) static FAMILY: Family = Family {
    model_type: "ministral3",
    architecture: "Ministral3ForCausalLM",
    settings: config::SETTINGS,
    weights: &[llama::weights::WEIGHTS],
    ..Family::USUAL
};
