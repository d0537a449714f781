//! Apertus: a Llama with a norm of each head, and a feed-forward block without a gate whose
//! activation has trained slopes (xIELU).

mod config;
#[cfg(test)]
mod tests;
mod weights;

use super::{llama, qwen3};
use crate::huggingface::Family;

pub(super) static FAMILY: Family = Family {
    model_type: "apertus",
    architecture: "ApertusForCausalLM",
    settings: config::SETTINGS,
    weights: &[weights::OWN, qwen3::weights::QK_NORMS, llama::weights::WEIGHTS],
    ..Family::USUAL
};
