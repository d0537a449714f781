//! GLM-4.5, 4.6 and 4.7: grouped attention with a part of each head rotated, a few dense layers,
//! then experts behind a sigmoid router, and an expert that all tokens go through. Files may have
//! layers of multi-token prediction after all other layers, as those of DeepSeek-V3.

#[cfg(test)]
mod tests;

use super::deepseek_v3::config::{PREDICTED_LAYERS, SHARED};
use super::mixture::{self, FIRST_DENSE, FirstDense, SharedExperts, SigmoidRouter};
use super::prelude::*;
use super::{deepseek_v3, llama, qwen3};

pub(super) static FAMILY: Family = Family {
    model_type: "glm4_moe",
    architecture: "Glm4MoeForCausalLM",
    settings: SETTINGS,
    weights: &[
        deepseek_v3::weights::PREDICTED_LAYERS,
        qwen3::QK_NORMS,
        mixture::SHARED,
        mixture::APART,
        mixture::STACKED,
        llama::WEIGHTS,
    ],
    aliases: deepseek_v3::ALIASES,
    ..Family::USUAL
};

/// Settings; absent ones have the values of `Glm4MoeConfig`.
const SETTINGS: &[Setting] = &[
    Setting::Rows(SIZES),
    Setting::KeyValueHeads(8),
    HEAD_SIZE,
    positions(131_072),
    size_or("moe_intermediate_size", |c| &mut experts(c).ffn_hidden_size, 1408),
    size_or("n_routed_experts", |c| &mut experts(c).num_experts, 128),
    size_or("num_experts_per_tok", |c| &mut experts(c).topk, 8),
    Setting::Group(&SigmoidRouter::UNGROUPED),
    Setting::Rows(LAYERS),
    rms_norm_epsilon(1e-5),
    Setting::Switch("use_qk_norm", |c| &mut c.qk_layernorm, false),
    Setting::Group(&RopeForm { percent: Some(0.5), ..RopeForm::USUAL }),
];

/// Shared experts, dense layers and attention, whose output has no bias.
pub(super) const LAYERS: &[Setting] = &[
    Setting::Group(&SharedExperts(SHARED, Some(1))),
    Setting::Group(&FirstDense(FIRST_DENSE, 1)),
    PREDICTED_LAYERS,
    Setting::Rows(BLOCKS),
    Setting::Switch("attention_bias", |c| &mut c.qkv_bias, false),
    tied_embeddings(false),
];
