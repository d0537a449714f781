//! ERNIE 4.5 as llama.cpp has it, which rotates neighbouring pairs too. It has no biases.

use crate::families::llama::gguf::SETTINGS;
use crate::families::prelude::*;
use crate::families::qwen3::gguf::{ATTENTION, ENDS, NORMS, UNIT};

pub(in crate::families) static GGUF: GgufFamily = GgufFamily {
    family: &super::FAMILY,
    architecture: "ernie4_5",
    settings: SETTINGS,
    tensors: &[ENDS, NORMS, ATTENTION, UNIT],
    ..GgufFamily::USUAL
};
