//! Cohere 2 with experts (Command A+): blocks side by side that read one norm, and after a few
//! dense layers experts and shared ones, whose outputs are averaged or added.

mod config;
#[cfg(test)]
mod tests;

use super::{llama, mixture};
use crate::huggingface::Family;

pub(super) static FAMILY: Family = Family {
    model_type: "cohere2_moe",
    architecture: "Cohere2MoeForCausalLM",
    settings: config::SETTINGS,
    weights: &[mixture::SHARED, mixture::APART, mixture::STACKED, llama::weights::WEIGHTS],
    ..Family::USUAL
};
