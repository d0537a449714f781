//! Hunyuan 3: attention with norms of queries and keys per head, a dense layer, then experts behind
//! a sigmoid router without groups, and an expert that all tokens go through. Layers of multi-token
//! prediction in published files are ignored, as in transformers.

mod config;
#[cfg(test)]
mod tests;
mod weights;

use super::{llama, mixture, qwen3};
use crate::huggingface::Family;

pub(super) static FAMILY: Family = Family {
    model_type: "hy_v3",
    architecture: "HYV3ForCausalLM",
    settings: config::SETTINGS,
    weights: &[
        qwen3::weights::QK_NORMS,
        weights::ON_DISK,
        weights::OF_MODULE,
        mixture::APART,
        mixture::STACKED,
        mixture::SHARED_IN_MODULE,
        llama::weights::WEIGHTS,
    ],
    module_names: &[(".mlp.router.gate.", ".mlp.gate."), (".mlp.shared_mlp.", ".mlp.shared_experts.")],
    dropped: &["model.layers.80."],
    aliases: &[("num_local_experts", "num_experts")],
    ..Family::USUAL
};
