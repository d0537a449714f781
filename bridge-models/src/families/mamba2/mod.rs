//! Mamba-2: every layer is a state space block.

pub(super) mod config;
#[cfg(test)]
mod tests;
pub(super) mod weights;

use crate::huggingface::Family;

pub(super) static FAMILY: Family = Family {
    model_type: "mamba2",
    architecture: "Mamba2ForCausalLM",
    settings: config::SETTINGS,
    weights: &[weights::WEIGHTS],
    prefix: "backbone.",
    buffers: &[],
    ..Family::USUAL
};
