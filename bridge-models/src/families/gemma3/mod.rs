//! Gemma 3, the language model: Gemma 2 with norms of queries and keys, and with a rotary base of
//! its own in windowed layers.

mod config;
#[cfg(test)]
mod tests;

use super::{gemma2, llama, qwen3};
use crate::huggingface::Family;

pub(super) static FAMILY: Family = Family {
    model_type: "gemma3_text",
    architecture: "Gemma3ForCausalLM",
    settings: config::SETTINGS,
    weights: &[gemma2::weights::NORMS, qwen3::weights::QK_NORMS, llama::weights::WEIGHTS],
    buffers: &[".rotary_emb.inv_freq", ".rotary_emb_local.inv_freq"],
    ..Family::USUAL
};
