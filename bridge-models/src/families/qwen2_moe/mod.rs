//! Qwen 1.5 and 2 with experts in all layers or some, and one gated expert that all tokens go
//! through.

pub(super) mod config;
#[cfg(test)]
mod tests;
pub(super) mod weights;

use super::{llama, mixture};
use crate::huggingface::Family;

pub(super) static FAMILY: Family = Family {
    model_type: "qwen2_moe",
    architecture: "Qwen2MoeForCausalLM",
    settings: config::SETTINGS,
    weights: &[weights::SHARED, mixture::APART, mixture::STACKED, llama::weights::WEIGHTS],
    ..Family::USUAL
};
