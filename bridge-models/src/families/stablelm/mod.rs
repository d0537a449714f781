//! StableLM: a Llama with LayerNorm, a quarter of each head rotated, and optional norms with
//! weights for each query and key head.

mod config;
#[cfg(test)]
mod tests;
mod weights;

use super::{llama, starcoder2};
use crate::huggingface::Family;

pub(super) static FAMILY: Family = Family {
    model_type: "stablelm",
    architecture: "StableLmForCausalLM",
    settings: config::SETTINGS,
    weights: &[weights::QK_NORMS, starcoder2::weights::NORM_BIASES, llama::weights::WEIGHTS],
    ..Family::USUAL
};
