//! GLM-4.5, 4.6 and 4.7: grouped attention with a part of each head rotated, a few dense layers,
//! then experts behind a sigmoid router, and an expert that all tokens go through. Files may have
//! layers of multi-token prediction after all other layers, as those of DeepSeek-V3.

pub(super) mod config;
#[cfg(test)]
mod tests;

use super::{deepseek_v3, llama, mixture, qwen3};
use crate::huggingface::Family;

pub(super) static FAMILY: Family = Family {
    model_type: "glm4_moe",
    architecture: "Glm4MoeForCausalLM",
    settings: config::SETTINGS,
    weights: &[
        deepseek_v3::weights::PREDICTED_LAYERS,
        qwen3::weights::QK_NORMS,
        mixture::SHARED,
        mixture::APART,
        mixture::STACKED,
        llama::weights::WEIGHTS,
    ],
    aliases: deepseek_v3::ALIASES,
    ..Family::USUAL
};
