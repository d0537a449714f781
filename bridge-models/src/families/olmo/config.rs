//! Settings of OLMo; absent ones have the values of `OlmoConfig`.

use crate::families::prelude::*;

pub(super) const SETTINGS: &[Setting] = &[
    Setting::Rows(SIZES),
    HEAD_SIZE,
    size_or("max_position_embeddings", |c| &mut c.max_position_embeddings, |_, _| Ok(2048)),
    Setting::Rows(BLOCKS),
    Setting::Always(|c| {
        (c.norm.kind, c.norm.affine) = (Normalization::LayerNormNoBias, false);
        c.norm.epsilon = 1e-5;
    }),
    Setting::Rows(ATTENTION_BIAS),
    CLIP_QKV,
    Setting::Switch("tie_word_embeddings", |c| &mut c.share_embeddings_and_output_weights, false),
    ROPE,
];

/// Limit of queries, keys and values.
pub(crate) const CLIP_QKV: Setting = Setting::NumberOrNone("clip_qkv", |c| &mut c.clip_qkv, None);
