//! Nemotron-H: layers of one block each, state space, attention without positions, or a feed-forward block.

mod config;
#[cfg(test)]
mod tests;
mod weights;

use crate::huggingface::Family;

/// `NemotronHForCausalLM`.
pub(super) static FAMILY: Family = Family {
    model_type: "nemotron_h",
    architecture: "NemotronHForCausalLM",
    settings: config::SETTINGS,
    weights: &[weights::WEIGHTS],
    prefix: "model.",
    buffers: &[],
};
