//! nanochat: norms without parameters, also of the embedding and of rotated queries and keys,
//! rotation by negative angles, a squared ReLU without a gate, and a soft cap on logits.

mod config;
#[cfg(test)]
mod tests;
mod weights;

use super::llama;
use crate::huggingface::Family;

pub(super) static FAMILY: Family = Family {
    model_type: "nanochat",
    architecture: "NanoChatForCausalLM",
    settings: config::SETTINGS,
    weights: &[weights::OWN, llama::weights::WEIGHTS],
    ..Family::USUAL
};
