//! Qwen3-Next: linear attention by the gated delta rule in three of four layers, gated softmax
//! attention in the fourth, and experts with a gated shared expert.

pub(super) mod config;
#[cfg(test)]
mod tests;
pub(super) mod weights;

use super::{llama, mixture, qwen2_moe, qwen3};
use crate::huggingface::Family;

pub(super) static FAMILY: Family = Family {
    model_type: "qwen3_next",
    architecture: "Qwen3NextForCausalLM",
    settings: config::SETTINGS,
    weights: &[
        weights::BY_HEAD,
        weights::HYBRID,
        qwen2_moe::weights::SHARED,
        qwen3::weights::QK_NORMS,
        mixture::APART,
        mixture::STACKED,
        llama::weights::WEIGHTS,
    ],
    dropped: &["mtp."],
    ..Family::USUAL
};
