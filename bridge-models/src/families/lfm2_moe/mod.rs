//! LFM2 with experts in all layers but the first ones.

mod config;
#[cfg(test)]
mod tests;
mod weights;

use super::{lfm2, llama};
use crate::huggingface::Family;

pub(super) static FAMILY: Family = Family {
    model_type: "lfm2_moe",
    architecture: "Lfm2MoeForCausalLM",
    settings: config::SETTINGS,
    weights: &[
        weights::APART,
        weights::STACKED,
        lfm2::weights::MIXERS,
        lfm2::weights::FEED_FORWARD,
        llama::weights::WEIGHTS,
    ],
    aliases: &[("tie_embedding", "tie_word_embeddings")],
    ..Family::USUAL
};
