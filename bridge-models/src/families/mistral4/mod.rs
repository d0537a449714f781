//! Mistral 4: latent attention with YaRN, whose queries grow with the position, and experts behind
//! a softmax router, with one that all tokens go through.

mod config;
#[cfg(test)]
mod tests;

use super::{deepseek_v3, llama, mixture};
use crate::huggingface::Family;

pub(super) static FAMILY: Family = Family {
    model_type: "mistral4",
    architecture: "Mistral4ForCausalLM",
    settings: config::SETTINGS,
    weights: &[deepseek_v3::weights::LATENT_ATTENTION, mixture::SHARED, mixture::STACKED, llama::weights::WEIGHTS],
    aliases: &[("num_local_experts", "n_routed_experts")],
    ..Family::USUAL
};
