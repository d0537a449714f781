//! Kimi Linear: Kimi Delta Attention in most layers, latent attention without positions in the
//! others, and DeepSeek-V3's experts.

pub(super) mod config;
#[cfg(test)]
mod tests;
mod weights;

use super::{deepseek_v3, llama, mixtral, mixture};
use crate::huggingface::Family;

pub(super) static FAMILY: Family = Family {
    model_type: "kimi_linear",
    architecture: "KimiLinearForCausalLM",
    settings: config::SETTINGS,
    weights: &[
        weights::WEIGHTS,
        mixtral::APART,
        mixtral::SHARED,
        mixture::STACKED,
        deepseek_v3::weights::LATENT_ATTENTION,
        llama::WEIGHTS,
    ],
    module_names: &[
        (".block_sparse_moe.", ".mlp."),
        (".self_attn.f_a_proj.", ".self_attn.forget_gate.f_a_proj."),
        (".self_attn.f_b_proj.", ".self_attn.forget_gate.f_b_proj."),
        (".self_attn.A_log", ".self_attn.forget_gate.A_log"),
        (".self_attn.dt_bias", ".self_attn.forget_gate.dt_bias"),
    ],
    aliases: &[
        ("max_position_embeddings", "model_max_length"),
        ("norm_topk_prob", "moe_renormalize"),
        ("n_group", "num_expert_group"),
        ("num_local_experts", "num_experts"),
        ("num_experts_per_tok", "num_experts_per_token"),
        ("n_shared_experts", "num_shared_experts"),
    ],
    ..Family::USUAL
};
