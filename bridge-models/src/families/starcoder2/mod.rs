//! StarCoder 2: LayerNorm, biases everywhere, a plain feed-forward block, rotary positions and a
//! sliding window.

mod config;
#[cfg(test)]
mod tests;
mod weights;

use super::llama;
use crate::huggingface::Family;

/// `Starcoder2ForCausalLM`.
pub(super) static FAMILY: Family = Family {
    model_type: "starcoder2",
    architecture: "Starcoder2ForCausalLM",
    settings: config::SETTINGS,
    weights: &[weights::OWN, llama::weights::WEIGHTS],
    prefix: "model.",
    buffers: &[".rotary_emb.inv_freq"],
    module_names: &[],
    dropped: &[],
    aliases: &[],
};
