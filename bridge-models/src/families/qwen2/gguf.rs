//! Qwen 2 as llama.cpp has it.

use crate::families::llama::gguf::SETTINGS;
use crate::families::prelude::*;
use crate::families::qwen3::gguf::{ATTENTION, ENDS, NORMS, UNIT};

pub(in crate::families) static GGUF: GgufFamily = GgufFamily {
    family: &super::FAMILY,
    architecture: "qwen2",
    settings: SETTINGS,
    tensors: &[ENDS, NORMS, ATTENTION, UNIT],
    ..GgufFamily::USUAL
};
