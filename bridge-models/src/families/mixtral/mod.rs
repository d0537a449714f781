//! Mixtral: a Llama with experts in every layer.

mod config;
#[cfg(test)]
mod tests;
pub(super) mod weights;

use super::{llama, mixture};
use crate::huggingface::Family;

pub(super) static FAMILY: Family = Family {
    model_type: "mixtral",
    architecture: "MixtralForCausalLM",
    settings: config::SETTINGS,
    weights: &[weights::APART, mixture::STACKED, llama::weights::WEIGHTS],
    module_names: &[(".block_sparse_moe.", ".mlp.")],
    aliases: &[("num_experts", "num_local_experts")],
    ..Family::USUAL
};
