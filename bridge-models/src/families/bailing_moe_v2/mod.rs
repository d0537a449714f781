//! Ling 2.0 and Ring 2.0 (Bailing MoE 2): Sarvam's layers and names, with half of each head rotated
//! and experts in groups. transformers has no class of it.

mod config;
#[cfg(test)]
mod tests;
mod weights;

use super::{deepseek_v3, llama, mixture, qwen3, sarvam_moe};
use crate::huggingface::Family;

pub(super) static FAMILY: Family = Family {
    model_type: "bailing_moe_v2",
    architecture: "BailingMoeV2ForCausalLM",
    settings: config::SETTINGS,
    weights: &[
        weights::NORMS,
        sarvam_moe::weights::ON_DISK,
        mixture::APART,
        mixture::SHARED,
        qwen3::weights::QK_NORMS_IN_MODULE,
        mixture::SHARED_IN_MODULE,
        mixture::STACKED,
        llama::weights::IN_MODULE,
        deepseek_v3::weights::PREDICTED_LAYERS,
        llama::weights::WEIGHTS,
    ],
    ..Family::USUAL
};
