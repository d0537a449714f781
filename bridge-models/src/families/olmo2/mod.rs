//! OLMo 2: a Llama whose norms are after its blocks, and whose queries and keys have one norm each
//! over all heads.

pub(super) mod config;
pub(super) mod gguf;
#[cfg(test)]
mod tests;
pub(super) mod weights;

use super::{llama, qwen3};
use crate::huggingface::Family;

pub(super) static FAMILY: Family = Family {
    model_type: "olmo2",
    architecture: "Olmo2ForCausalLM",
    settings: config::SETTINGS,
    weights: &[weights::NORMS, qwen3::weights::QK_NORMS, llama::weights::WEIGHTS],
    ..Family::USUAL
};
