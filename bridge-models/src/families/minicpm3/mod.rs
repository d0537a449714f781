//! MiniCPM3: latent attention without experts, and factors on the embedding, on the outputs of
//! blocks and on logits.

mod config;
#[cfg(test)]
mod tests;

use super::{deepseek_v3, llama};
use crate::huggingface::Family;

pub(super) static FAMILY: Family = Family {
    model_type: "minicpm3",
    architecture: "MiniCPM3ForCausalLM",
    settings: config::SETTINGS,
    weights: &[deepseek_v3::weights::LATENT_ATTENTION, llama::weights::WEIGHTS],
    ..Family::USUAL
};
