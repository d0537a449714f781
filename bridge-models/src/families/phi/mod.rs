//! Phi 1, 1.5 and 2: one LayerNorm, blocks side by side, biases everywhere, also of the output
//! projection, and heads of which a part is rotated.

mod config;
#[cfg(test)]
mod tests;
pub(super) mod weights;

use super::llama;
use crate::huggingface::Family;

pub(super) static FAMILY: Family = Family {
    model_type: "phi",
    architecture: "PhiForCausalLM",
    settings: config::SETTINGS,
    weights: &[weights::OWN, weights::OUTPUT_BIAS, llama::weights::WEIGHTS],
    ..Family::USUAL
};
