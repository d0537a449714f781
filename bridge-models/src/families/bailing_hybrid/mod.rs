//! Bailing Hybrid (Ling and Ring 3): Kimi Delta Attention with bounded decays in most layers, gated
//! latent attention in the others, and DeepSeek-V3's experts.

mod config;
#[cfg(test)]
mod tests;
mod weights;

use super::{llama, mixture};
use crate::huggingface::Family;

pub(super) static FAMILY: Family = Family {
    model_type: "bailing_hybrid",
    architecture: "BailingHybridForCausalLM",
    settings: config::SETTINGS,
    weights: &[weights::WEIGHTS, mixture::APART, mixture::STACKED, mixture::SHARED, llama::weights::WEIGHTS],
    module_names: &[
        ("model.word_embeddings.", "model.embed_tokens."),
        (".attention.f_proj.", ".self_attn.forget_gate.f_proj."),
        (".attention.A_log", ".self_attn.forget_gate.A_log"),
        (".attention.dt_bias", ".self_attn.forget_gate.dt_bias"),
        (".attention.dense.", ".self_attn.o_proj."),
        (".attention.", ".self_attn."),
        (".gate.expert_bias", ".gate.e_score_correction_bias"),
    ],
    aliases: &[
        ("max_position_embeddings", "model_max_length"),
        ("norm_topk_prob", "moe_renormalize"),
        ("n_group", "num_expert_group"),
        ("num_local_experts", "num_experts"),
        ("num_experts_per_tok", "num_experts_per_token"),
        ("n_shared_experts", "num_shared_experts"),
        ("num_mtp_layers", "num_nextn_predict_layers"),
    ],
    ..Family::USUAL
};
