//! MiniMax-M3, the language model: attention of some layers to blocks of keys that an indexer
//! chooses for each group of heads, and MiniMax-M2's experts with GPT-OSS's unit and a shared
//! expert.

mod config;
#[cfg(test)]
mod tests;
mod weights;

use super::{llama, mixtral, mixture, qwen3};
use crate::huggingface::Family;

pub(super) static FAMILY: Family = Family {
    model_type: "minimax_m3_vl_text",
    architecture: "MiniMaxM3VLForCausalLM",
    settings: config::SETTINGS,
    weights: &[
        weights::OWN,
        mixtral::weights::APART,
        mixtral::weights::SHARED,
        qwen3::weights::QK_NORMS,
        mixture::STACKED,
        llama::weights::WEIGHTS,
    ],
    module_names: &[
        (".block_sparse_moe.", ".mlp."),
        (".self_attn.index_q_", ".self_attn.indexer.q_"),
        (".self_attn.index_k_", ".self_attn.indexer.k_"),
    ],
    dropped: &["mtp.", "model.mtp."],
    aliases: &[("num_experts", "num_local_experts")],
    ..Family::USUAL
};
