//! Sarvam 105B: DeepSeek-V3 with other defaults. transformers runs it as DeepSeek-V3, whose class
//! its files name.

#[cfg(test)]
mod tests;

use super::deepseek_v3;
use super::deepseek_v3::config::{LatentSizes, PREDICTED_LAYERS, SHARED, read_rope, write_rope};
use super::mixture::{FIRST_DENSE, FirstDense, SharedExperts, SigmoidRouter};
use super::prelude::*;

pub(super) static FAMILY: Family = Family {
    model_type: "sarvam_mla",
    architecture: "SarvamMLAForCausalLM",
    settings: SETTINGS,
    weights: deepseek_v3::WEIGHTS,
    aliases: &[
        ("num_local_experts", "n_routed_experts"),
        ("num_mtp_layers", "num_nextn_predict_layers"),
        ("num_experts", "n_routed_experts"),
        ("num_shared_experts", "n_shared_experts"),
    ],
    ..Family::USUAL
};

/// Settings; absent ones have the values of `SarvamMLAConfig`.
const SETTINGS: &[Setting] = &[
    Setting::Rows(SIZES),
    positions(4096),
    Setting::Group(&LatentSizes { query: None, key_value: 512, rotated: 64, plain: 128, value: Some(128) }),
    size_or("moe_intermediate_size", |c| &mut experts(c).ffn_hidden_size, 2048),
    size_or("n_routed_experts", |c| &mut experts(c).num_experts, 128),
    size_or("num_experts_per_tok", |c| &mut experts(c).topk, 8),
    Setting::Only("score_function", || json!("sigmoid")),
    Setting::Only("moe_router_enable_expert_bias", || json!(true)),
    Setting::Group(&SigmoidRouter { factor: 2.5, ..SigmoidRouter::UNGROUPED }),
    Setting::Group(&SharedExperts(SHARED, Some(1))),
    Setting::Group(&FirstDense(FIRST_DENSE, 1)),
    PREDICTED_LAYERS,
    Setting::Rows(BLOCKS),
    initializer_range(0.006),
    Setting::Rows(ATTENTION_BIAS),
    rms_norm_epsilon(1e-6),
    tied_embeddings(false),
    Setting::Keys { read: read_rope, write: write_rope },
    Setting::Unused(&["head_dim", "q_head_dim", "qk_head_dim"]),
];
