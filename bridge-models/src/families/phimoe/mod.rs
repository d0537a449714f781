//! Phi-3.5-MoE: a Mixtral with LayerNorm, biases of attention and of the output projection, and
//! a router that weighs two experts one after the other. In training transformers samples
//! experts; here they are always chosen as in evaluation.

mod config;
#[cfg(test)]
mod tests;
mod weights;

use super::{llama, mixtral, mixture, phi};
use crate::huggingface::Family;

pub(super) static FAMILY: Family = Family {
    model_type: "phimoe",
    architecture: "PhimoeForCausalLM",
    settings: config::SETTINGS,
    weights: &[
        weights::OWN,
        mixtral::weights::APART,
        mixture::STACKED,
        phi::weights::OUTPUT_BIAS,
        llama::weights::WEIGHTS,
    ],
    module_names: &[(".block_sparse_moe.gate.", ".mlp.router."), (".block_sparse_moe.", ".mlp.")],
    ..Family::USUAL
};
