//! AFMoE (Trinity): norms before and after blocks, gates on attention's output, rotation in
//! windowed layers only, a few dense layers, then experts behind a sigmoid router and a shared one.

mod config;
#[cfg(test)]
mod tests;
mod weights;

use super::{llama, mixture, qwen3};
use crate::huggingface::Family;

pub(super) static FAMILY: Family = Family {
    model_type: "afmoe",
    architecture: "AfmoeForCausalLM",
    settings: config::SETTINGS,
    weights: &[
        weights::OWN,
        qwen3::weights::QK_NORMS,
        mixture::SHARED,
        mixture::APART,
        mixture::STACKED,
        llama::weights::WEIGHTS,
    ],
    ..Family::USUAL
};
