//! OLMoE: a Llama with experts in every layer, whose queries and keys have one norm each over all
//! heads.

mod config;
#[cfg(test)]
mod tests;

use super::{llama, mixture, qwen3};
use crate::huggingface::Family;

pub(super) static FAMILY: Family = Family {
    model_type: "olmoe",
    architecture: "OlmoeForCausalLM",
    settings: config::SETTINGS,
    weights: &[qwen3::weights::QK_NORMS, mixture::APART, mixture::STACKED, llama::weights::WEIGHTS],
    aliases: &[("num_local_experts", "num_experts")],
    ..Family::USUAL
};
