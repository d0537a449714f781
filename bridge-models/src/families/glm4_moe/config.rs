//! Settings of GLM-4.5; absent ones have the values of `Glm4MoeConfig`.

use crate::families::deepseek_v3::config::{PREDICTED_LAYERS, SHARED};
use crate::families::mixture::{FIRST_DENSE, FirstDense, SharedExperts, SigmoidRouter};
use crate::families::prelude::*;

pub(super) const SETTINGS: &[Setting] = &[
    Setting::Rows(SIZES),
    Setting::KeyValueHeads(8),
    HEAD_SIZE,
    size_or("max_position_embeddings", |c| &mut c.max_position_embeddings, |_, _| Ok(131_072)),
    size_or("moe_intermediate_size", |c| &mut experts(c).ffn_hidden_size, |_, _| Ok(1408)),
    size_or("n_routed_experts", |c| &mut experts(c).num_experts, |_, _| Ok(128)),
    size_or("num_experts_per_tok", |c| &mut experts(c).topk, |_, _| Ok(8)),
    Setting::Group(&SigmoidRouter::UNGROUPED),
    Setting::Rows(LAYERS),
    Setting::Number("rms_norm_eps", |c| &mut c.norm.epsilon, |_, _| Ok(1e-5)),
    Setting::Switch("use_qk_norm", |c| &mut c.qk_layernorm, false),
    Setting::Group(&RopeForm { percent: Some(0.5), ..RopeForm::USUAL }),
];

/// Shared experts, dense layers and attention, whose output has no bias.
pub(crate) const LAYERS: &[Setting] = &[
    Setting::Group(&SharedExperts(SHARED, Some(1))),
    Setting::Group(&FirstDense(FIRST_DENSE, 1)),
    PREDICTED_LAYERS,
    Setting::Rows(BLOCKS),
    Setting::Switch("attention_bias", |c| &mut c.qkv_bias, false),
    Setting::Switch("tie_word_embeddings", |c| &mut c.share_embeddings_and_output_weights, false),
];
