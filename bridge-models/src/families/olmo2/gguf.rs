//! OLMo 2 as llama.cpp has it. A file with a window is an OLMo 3, which is not read.

use crate::families::llama::gguf::SETTINGS;
use crate::families::prelude::*;
use crate::families::qwen3::gguf::{ATTENTION, ENDS, QK_NORMS, UNIT};

pub(in crate::families) static GGUF: GgufFamily = GgufFamily {
    family: &super::FAMILY,
    architecture: "olmo2",
    settings: SETTINGS,
    windows: GgufWindows::Refused,
    tensors: &[ENDS, NORMS, ATTENTION, QK_NORMS, UNIT],
    ..GgufFamily::USUAL
};

/// Norms behind the two blocks of a layer.
pub(in crate::families) const NORMS: &[GgufName] = &[
    ("blk.{}.post_attention_norm.weight", "model.layers.{}.post_attention_layernorm.weight", Rearrangement::None),
    ("blk.{}.post_ffw_norm.weight", "model.layers.{}.post_feedforward_layernorm.weight", Rearrangement::None),
];
