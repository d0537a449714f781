//! Kimi K2: DeepSeek-V3 under a name of its own. Published files name DeepSeek-V3's class.

#[cfg(test)]
mod tests;

use super::deepseek_v3;
use crate::huggingface::Family;

pub(super) static FAMILY: Family = Family {
    model_type: "kimi_k2",
    architecture: "KimiK2ForCausalLM",
    settings: deepseek_v3::config::SETTINGS,
    weights: deepseek_v3::WEIGHTS,
    aliases: deepseek_v3::ALIASES,
    ..Family::USUAL
};
