//! Arcee as llama.cpp has it: like Llama, with rotated pairs side by side.

use crate::families::llama::gguf::{PAIRED, SETTINGS};
use crate::families::nemotron::gguf::PLAIN;
use crate::families::prelude::*;
use crate::families::qwen3::gguf::{ENDS, NORMS};

/// llama.cpp has biases in attention at most.
pub(in crate::families) static GGUF: GgufFamily = GgufFamily {
    family: &super::FAMILY,
    architecture: "arcee",
    settings: SETTINGS,
    tensors: &[ENDS, NORMS, PAIRED, PLAIN],
    ..GgufFamily::USUAL
};
