//! Settings of Qwen 2; absent ones have the values of `Qwen2Config`.

use crate::families::prelude::*;
use crate::families::qwen3::config::SLIDING_WINDOW_UPPER_LAYERS;

pub(crate) const SETTINGS: &[Setting] = &[
    Setting::Rows(SIZES),
    Setting::KeyValueHeads(32),
    HEAD_SIZE,
    size_or("max_position_embeddings", |c| &mut c.max_position_embeddings, |_, _| Ok(32_768)),
    Setting::Rows(BLOCKS),
    Setting::Always(|c| c.qkv_bias = true),
    Setting::Number("rms_norm_eps", |c| &mut c.norm.epsilon, |_, _| Ok(1e-6)),
    Setting::Switch("tie_word_embeddings", |c| &mut c.share_embeddings_and_output_weights, false),
    ROPE,
    SLIDING_WINDOW_UPPER_LAYERS,
];
