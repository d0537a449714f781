//! Falcon-H1: Mamba-2 and attention side by side in each layer, a gated feed-forward block, and
//! factors on inputs and outputs of all of them.

mod config;
#[cfg(test)]
mod tests;

use super::{llama, pairs};
use crate::huggingface::Family;

pub(super) static FAMILY: Family = Family {
    model_type: "falcon_h1",
    architecture: "FalconH1ForCausalLM",
    settings: config::SETTINGS,
    weights: &[pairs::MIXER_WEIGHTS, pairs::FEED_FORWARD_WEIGHTS, llama::weights::WEIGHTS],
    ..Family::USUAL
};
