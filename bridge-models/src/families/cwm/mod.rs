//! CWM: a Llama with a window in three of four layers.

mod config;
#[cfg(test)]
mod tests;

use super::llama;
use crate::huggingface::Family;

pub(super) static FAMILY: Family = Family {
    model_type: "cwm",
    architecture: "CwmForCausalLM",
    settings: config::SETTINGS,
    weights: &[llama::weights::WEIGHTS],
    usual_bos: Some(128_000),
    ..Family::USUAL
};
