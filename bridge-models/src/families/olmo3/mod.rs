//! OLMo 3: an OLMo 2 with a window in three of four layers, whose rotary frequencies are not
//! scaled there.

mod config;
#[cfg(test)]
mod tests;

use super::{llama, olmo2, qwen3};
use crate::huggingface::Family;

pub(super) static FAMILY: Family = Family {
    model_type: "olmo3",
    architecture: "Olmo3ForCausalLM",
    settings: config::SETTINGS,
    weights: &[olmo2::weights::NORMS, qwen3::weights::QK_NORMS, llama::weights::WEIGHTS],
    ..Family::USUAL
};
