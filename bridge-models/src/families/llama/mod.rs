//! Llama 1 to 3, SmolLM2, TinyLlama and others. Query, key and value are three matrices there, gate
//! and up two.

pub(super) mod config;
pub(super) mod gguf;
pub(super) mod weights;

use crate::huggingface::Family;

pub(super) static FAMILY: Family = Family {
    model_type: "llama",
    architecture: "LlamaForCausalLM",
    settings: config::SETTINGS,
    weights: &[weights::WEIGHTS],
    ..Family::USUAL
};
