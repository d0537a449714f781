//! Settings of OLMo 2; absent ones have the values of `Olmo2Config`.

use crate::decoder::{NormPlacement, QkNormScope};
use crate::families::llama::config::{ATTENTION_BIAS, BLOCKS, HEAD_SIZE, ROPE, SIZES};
use crate::huggingface::settings::{Setting, size_or};

pub(super) const SETTINGS: &[Setting] = &[
    Setting::Rows(SIZES),
    HEAD_SIZE,
    size_or("max_position_embeddings", |c| &mut c.max_position_embeddings, |_, _| Ok(2048)),
    Setting::Always(|c| {
        c.residual.norms = NormPlacement::Output;
        c.qk_layernorm = true;
        c.qk_layernorm_scope = QkNormScope::Projection;
    }),
    Setting::Rows(BLOCKS),
    Setting::Rows(ATTENTION_BIAS),
    Setting::Number("rms_norm_eps", |c| &mut c.norm.epsilon, |_, _| Ok(1e-5)),
    Setting::Switch("tie_word_embeddings", |c| &mut c.share_embeddings_and_output_weights, false),
    ROPE,
];
