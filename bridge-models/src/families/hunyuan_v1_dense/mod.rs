//! Hunyuan, dense: a Llama whose queries and keys are normalized per head after the rotation, with
//! a grown rotary base.

pub(super) mod config;
#[cfg(test)]
mod tests;
pub(super) mod weights;

use super::llama;
use crate::huggingface::Family;

pub(super) static FAMILY: Family = Family {
    model_type: "hunyuan_v1_dense",
    architecture: "HunYuanDenseV1ForCausalLM",
    settings: config::SETTINGS,
    weights: &[weights::QK_NORMS, llama::weights::WEIGHTS],
    ..Family::USUAL
};
