//! Granite 4: Mamba-2 or attention in each layer, a feed-forward block that all tokens go through,
//! with or without experts, and Granite's factors.

mod config;
#[cfg(test)]
mod tests;
mod weights;

use super::{llama, pairs};
use crate::huggingface::Family;

pub(super) static FAMILY: Family = Family {
    model_type: "granitemoehybrid",
    architecture: "GraniteMoeHybridForCausalLM",
    settings: config::SETTINGS,
    weights: &[weights::WEIGHTS, weights::ON_DISK, weights::OF_MODULE, pairs::MIXER_WEIGHTS, llama::weights::WEIGHTS],
    aliases: &[("layers_block_type", "layer_types")],
    ..Family::USUAL
};
