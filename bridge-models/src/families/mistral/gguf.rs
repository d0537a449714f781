//! Mistral in GGUF: llama.cpp stores and reads it as a Llama. A window cannot be stored.

use crate::families::llama::gguf::{SETTINGS, TENSORS};
use crate::families::prelude::*;

pub(in crate::families) static GGUF: GgufFamily = GgufFamily {
    family: &super::FAMILY,
    architecture: "llama",
    settings: SETTINGS,
    tensors: TENSORS,
    ..GgufFamily::USUAL
};
