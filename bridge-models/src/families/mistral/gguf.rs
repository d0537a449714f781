//! Mistral as llama.cpp has it: it is written as a Llama, and read as one. A window has no place
//! there.

use crate::families::llama::gguf::{SETTINGS, TENSORS};
use crate::huggingface::gguf::GgufFamily;

pub(in crate::families) static GGUF: GgufFamily =
    GgufFamily { family: &super::FAMILY, architecture: "llama", settings: SETTINGS, switches: &[], tensors: TENSORS };
