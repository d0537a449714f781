//! Granite 3 with experts in every layer: Granite's factors, and all experts of a layer in two
//! tensors.

mod config;
#[cfg(test)]
mod tests;
mod weights;

use super::llama;
use crate::huggingface::Family;

pub(super) static FAMILY: Family = Family {
    model_type: "granitemoe",
    architecture: "GraniteMoeForCausalLM",
    settings: config::SETTINGS,
    weights: &[weights::ON_DISK, weights::OF_MODULE, llama::weights::WEIGHTS],
    ..Family::USUAL
};
