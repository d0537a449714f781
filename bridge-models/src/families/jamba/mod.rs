//! Jamba: the first Mamba's block or attention without positions in each layer, and experts in
//! every other layer.

mod config;
#[cfg(test)]
mod tests;
mod weights;

use super::{llama, pairs};
use crate::huggingface::Family;

pub(super) static FAMILY: Family = Family {
    model_type: "jamba",
    architecture: "JambaForCausalLM",
    settings: config::SETTINGS,
    weights: &[
        weights::APART,
        weights::STACKED,
        pairs::MIXER_WEIGHTS,
        pairs::FEED_FORWARD_WEIGHTS,
        llama::weights::WEIGHTS,
    ],
    buffers: &[],
    aliases: &[("num_local_experts", "num_experts")],
    ..Family::USUAL
};
