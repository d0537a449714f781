//! GLM-5: DeepSeek-V3.2, some of whose layers share the keys that a layer before them chooses.

mod config;
#[cfg(test)]
mod tests;

use super::{deepseek_v3, deepseek_v32};
use crate::huggingface::Family;

pub(super) static FAMILY: Family = Family {
    model_type: "glm_moe_dsa",
    architecture: "GlmMoeDsaForCausalLM",
    settings: config::SETTINGS,
    weights: deepseek_v32::WEIGHTS,
    aliases: deepseek_v3::ALIASES,
    ..Family::USUAL
};
