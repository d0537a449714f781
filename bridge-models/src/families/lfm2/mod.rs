//! LFM2: a short convolution between two gates, or attention with norms of queries and keys, in
//! each layer, and a gated feed-forward block.

pub(super) mod config;
#[cfg(test)]
mod tests;
pub(super) mod weights;

use super::llama;
use crate::huggingface::Family;

pub(super) static FAMILY: Family = Family {
    model_type: "lfm2",
    architecture: "Lfm2ForCausalLM",
    settings: config::SETTINGS,
    weights: &[weights::MIXERS, weights::FEED_FORWARD, llama::weights::WEIGHTS],
    aliases: &[("tie_embedding", "tie_word_embeddings")],
    ..Family::USUAL
};
