//! OLMo: a Llama whose norms are LayerNorms without parameters.

#[cfg(test)]
mod tests;

use super::llama;
use super::prelude::*;

pub(super) static FAMILY: Family = Family {
    model_type: "olmo",
    architecture: "OlmoForCausalLM",
    settings: SETTINGS,
    weights: &[llama::WEIGHTS],
    ..Family::USUAL
};

/// Settings; absent ones have the values of `OlmoConfig`.
const SETTINGS: &[Setting] = &[
    Setting::Rows(SIZES),
    HEAD_SIZE,
    positions(2048),
    Setting::Rows(BLOCKS),
    Setting::Always(|c| {
        (c.norm.kind, c.norm.affine) = (Normalization::LayerNormNoBias, false);
        c.norm.epsilon = 1e-5;
    }),
    Setting::Rows(ATTENTION_BIAS),
    CLIP_QKV,
    tied_embeddings(false),
    ROPE,
];

/// Limit of queries, keys and values.
pub(super) const CLIP_QKV: Setting = Setting::NumberOrNone("clip_qkv", |c| &mut c.clip_qkv, None);
