//! MiMo-7B: a Qwen 2 whose files have layers of multi-token prediction, which are left out.

mod config;
#[cfg(test)]
mod tests;

use super::llama;
use crate::huggingface::Family;

pub(super) static FAMILY: Family = Family {
    model_type: "mimo",
    architecture: "MiMoForCausalLM",
    settings: config::SETTINGS,
    weights: &[llama::weights::WEIGHTS],
    dropped: &["model.mtp_layers."],
    ..Family::USUAL
};
