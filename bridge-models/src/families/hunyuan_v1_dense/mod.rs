//! Hunyuan, dense: a Llama whose queries and keys are normalized per head after the rotation, with
//! a grown rotary base.

#[cfg(test)]
mod tests;

use super::llama;
use super::prelude::*;

pub(super) static FAMILY: Family = Family {
    model_type: "hunyuan_v1_dense",
    architecture: "HunYuanDenseV1ForCausalLM",
    settings: SETTINGS,
    weights: &[QK_NORMS, llama::WEIGHTS],
    ..Family::USUAL
};

/// Settings; absent ones have the values of `HunYuanDenseV1Config`. All settings but those of
/// experts.
pub(super) const SETTINGS: &[Setting] = &[
    Setting::Rows(SIZES),
    HEAD_SIZE,
    positions(2048),
    Setting::Always(|c| (c.qk_layernorm, c.qk_layernorm_after_rope) = (true, true)),
    Setting::Rows(BLOCKS),
    Setting::Rows(ATTENTION_BIAS),
    rms_norm_epsilon(1e-5),
    tied_embeddings(false),
    // `alpha` in a table of type `dynamic` is a growth of the base.
    Setting::Group(&RopeForm { ntk_alpha: true, ..RopeForm::USUAL }),
    Setting::Unused(&["eod_token_id"]),
];

/// Names of the norms of queries and keys.
pub(super) const QK_NORMS: &[WeightRule] = &[
    layer!("self_attention.q_layernorm.weight", "self_attn.query_layernorm.weight"),
    layer!("self_attention.k_layernorm.weight", "self_attn.key_layernorm.weight"),
];
