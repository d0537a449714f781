//! Llama 4 (Scout, Maverick): rotated layers that attend inside chunks, layers without positions
//! whose queries have a factor, and experts that read a token times its score beside a shared one.

mod config;
#[cfg(test)]
mod tests;
mod weights;

use super::llama;
use crate::huggingface::Family;

pub(super) static FAMILY: Family = Family {
    model_type: "llama4_text",
    architecture: "Llama4ForCausalLM",
    settings: config::SETTINGS,
    weights: &[weights::FEED_FORWARD, llama::weights::WEIGHTS],
    aliases: &[("num_experts", "num_local_experts")],
    ..Family::USUAL
};
