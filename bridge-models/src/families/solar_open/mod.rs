//! Solar Open: GLM-4.5's experts in every layer, behind Llama's attention.

mod config;
#[cfg(test)]
mod tests;

use super::{llama, mixture};
use crate::huggingface::Family;

pub(super) static FAMILY: Family = Family {
    model_type: "solar_open",
    architecture: "SolarOpenForCausalLM",
    settings: config::SETTINGS,
    weights: &[mixture::SHARED, mixture::APART, mixture::STACKED, llama::weights::WEIGHTS],
    aliases: &[("num_local_experts", "n_routed_experts")],
    ..Family::USUAL
};
