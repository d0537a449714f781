//! MiniMax-M2: attention with one norm of queries and one of keys over all heads, of which a part
//! is rotated, and experts behind a sigmoid router in every layer. Files call the experts as
//! Mixtral's do.

pub(super) mod config;
#[cfg(test)]
mod tests;
mod weights;

use super::{llama, mixtral, mixture, qwen3};
use crate::huggingface::Family;

pub(super) static FAMILY: Family = Family {
    model_type: "minimax_m2",
    architecture: "MiniMaxM2ForCausalLM",
    settings: config::SETTINGS,
    weights: &[
        weights::BIAS,
        mixtral::weights::APART,
        qwen3::weights::QK_NORMS,
        mixture::STACKED,
        llama::weights::WEIGHTS,
    ],
    module_names: &[(".block_sparse_moe.", ".mlp.")],
    aliases: &[("num_experts", "num_local_experts")],
    ..Family::USUAL
};
