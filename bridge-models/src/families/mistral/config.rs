//! Settings of Mistral; absent ones have the values of `MistralConfig`.

use crate::families::llama::config::{BLOCKS, HEAD_SIZE, ROPE, SIZES};
use crate::huggingface::settings::{Setting, size_or};
use crate::huggingface::windows;

pub(super) const SETTINGS: &[Setting] = &[
    Setting::Rows(SIZES),
    HEAD_SIZE,
    size_or("max_position_embeddings", |c| &mut c.max_position_embeddings, |_, _| Ok(131_072)),
    Setting::Rows(BLOCKS),
    Setting::Number("rms_norm_eps", |c| &mut c.norm.epsilon, |_, _| Ok(1e-6)),
    Setting::Switch("tie_word_embeddings", |c| &mut c.share_embeddings_and_output_weights, false),
    ROPE,
    Setting::Keys { read: |fields, c| windows::read_of_all(fields, c, Some(4096)), write: windows::write_of_all },
];
