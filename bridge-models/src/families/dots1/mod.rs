//! dots.llm1: attention with norms of queries and keys per head, a few dense layers, then experts
//! behind a sigmoid router, and experts that all tokens go through. Upper layers may have a sliding
//! window.

mod config;
#[cfg(test)]
mod tests;

use super::{llama, mixture, qwen3};
use crate::huggingface::Family;

pub(super) static FAMILY: Family = Family {
    model_type: "dots1",
    architecture: "Dots1ForCausalLM",
    settings: config::SETTINGS,
    weights: &[qwen3::weights::QK_NORMS, mixture::SHARED, mixture::APART, mixture::STACKED, llama::weights::WEIGHTS],
    aliases: &[("num_local_experts", "n_routed_experts")],
    ..Family::USUAL
};
