//! EXAONE 4 as llama.cpp has it.

use crate::families::llama::gguf::SETTINGS;
use crate::families::olmo2::gguf::NORMS;
use crate::families::prelude::*;
use crate::families::qwen3::gguf::{ATTENTION, ENDS, QK_NORMS, UNIT};

pub(in crate::families) static GGUF: GgufFamily = GgufFamily {
    family: &super::FAMILY,
    architecture: "exaone4",
    settings: SETTINGS,
    windows: GgufWindows::Stored,
    tensors: &[ENDS, NORMS, ATTENTION, QK_NORMS, UNIT],
    ..GgufFamily::USUAL
};
