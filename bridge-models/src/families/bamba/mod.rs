//! Bamba: Mamba-2 or attention with half-rotated heads in each layer, and a gated feed-forward
//! block.

mod config;
#[cfg(test)]
mod tests;

use super::{llama, pairs};
use crate::huggingface::Family;

pub(super) static FAMILY: Family = Family {
    model_type: "bamba",
    architecture: "BambaForCausalLM",
    settings: config::SETTINGS,
    weights: &[pairs::MIXER_WEIGHTS, pairs::FEED_FORWARD_WEIGHTS, llama::weights::WEIGHTS],
    ..Family::USUAL
};
