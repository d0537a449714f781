//! DeepSeek-V3.2: DeepSeek-V3 whose queries attend to the keys that an indexer chooses.

pub(super) mod config;
#[cfg(test)]
mod tests;
pub(super) mod weights;

use super::{deepseek_v3, llama, mixture};
use crate::huggingface::Family;
use crate::huggingface::weight_map::WeightRule;

pub(super) static FAMILY: Family = Family {
    model_type: "deepseek_v32",
    architecture: "DeepseekV32ForCausalLM",
    settings: config::SETTINGS,
    weights: WEIGHTS,
    aliases: deepseek_v3::ALIASES,
    ..Family::USUAL
};

/// Names of all parameters.
pub(in crate::families) const WEIGHTS: &[&[WeightRule]] = &[
    weights::INDEXER,
    deepseek_v3::weights::PREDICTED_LAYERS,
    deepseek_v3::weights::LATENT_ATTENTION,
    mixture::SHARED,
    mixture::APART,
    mixture::STACKED,
    llama::weights::WEIGHTS,
];
