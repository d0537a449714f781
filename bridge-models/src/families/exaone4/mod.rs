//! EXAONE 4: a Llama whose norms are after its blocks, whose queries and keys are normalized per
//! head, and which rotates windowed layers only, if it has any.

pub(super) mod config;
pub(super) mod gguf;
#[cfg(test)]
mod tests;

use super::{llama, olmo2, qwen3};
use crate::huggingface::Family;

pub(super) static FAMILY: Family = Family {
    model_type: "exaone4",
    architecture: "Exaone4ForCausalLM",
    settings: config::SETTINGS,
    weights: &[olmo2::weights::NORMS, qwen3::weights::QK_NORMS, llama::weights::WEIGHTS],
    ..Family::USUAL
};
