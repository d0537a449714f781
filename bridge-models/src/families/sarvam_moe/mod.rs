//! Sarvam 30B: GLM-4.5's layers with rotation of whole heads. Files have queries, keys and values
//! in one matrix, and other names than the state of a module.

pub(super) mod config;
#[cfg(test)]
mod tests;
pub(super) mod weights;

use super::{deepseek_v3, llama, mixture, qwen3};
use crate::huggingface::Family;

pub(super) static FAMILY: Family = Family {
    model_type: "sarvam_moe",
    architecture: "SarvamMoEForCausalLM",
    settings: config::SETTINGS,
    weights: &[
        weights::ON_DISK,
        mixture::APART,
        mixture::SHARED,
        qwen3::weights::QK_NORMS_IN_MODULE,
        mixture::SHARED_IN_MODULE,
        mixture::STACKED,
        llama::weights::IN_MODULE,
        deepseek_v3::weights::PREDICTED_LAYERS,
        llama::weights::WEIGHTS,
    ],
    aliases: &[
        ("num_local_experts", "n_routed_experts"),
        ("num_mtp_layers", "num_nextn_predict_layers"),
        ("num_experts", "n_routed_experts"),
        ("num_shared_experts", "n_shared_experts"),
        ("use_qkv_bias", "attention_bias"),
    ],
    ..Family::USUAL
};
