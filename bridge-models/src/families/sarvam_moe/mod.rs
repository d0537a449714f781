//! Sarvam 30B: GLM-4.5's layers with rotation of whole heads. Files have queries, keys and values
//! in one matrix, and other names than the state of a module.

#[cfg(test)]
mod tests;

use super::glm4_moe::LAYERS;
use super::mixture::{self, SigmoidRouter};
use super::prelude::*;
use super::{deepseek_v3, llama, qwen3};

pub(super) static FAMILY: Family = Family {
    model_type: "sarvam_moe",
    architecture: "SarvamMoEForCausalLM",
    settings: SETTINGS,
    weights: &[
        ON_DISK,
        mixture::APART,
        mixture::SHARED,
        qwen3::QK_NORMS_IN_MODULE,
        mixture::SHARED_IN_MODULE,
        mixture::STACKED,
        llama::IN_MODULE,
        deepseek_v3::weights::PREDICTED_LAYERS,
        llama::WEIGHTS,
    ],
    aliases: &[
        ("num_local_experts", "n_routed_experts"),
        ("num_mtp_layers", "num_nextn_predict_layers"),
        ("num_experts", "n_routed_experts"),
        ("num_shared_experts", "n_shared_experts"),
        ("use_qkv_bias", "attention_bias"),
    ],
    ..Family::USUAL
};

/// Settings; absent ones have the values of `SarvamMoEConfig`.
const SETTINGS: &[Setting] = &[
    Setting::Rows(SIZES),
    Setting::KeyValueHeads(4),
    head_size(64),
    positions(131_072),
    size_or("moe_intermediate_size", |c| &mut experts(c).ffn_hidden_size, 1024),
    size_or("n_routed_experts", |c| &mut experts(c).num_experts, 128),
    size_or("num_experts_per_tok", |c| &mut experts(c).topk, 6),
    Setting::Group(&SigmoidRouter { factor: 2.5, ..SigmoidRouter::UNGROUPED }),
    Setting::Rows(LAYERS),
    initializer_range(0.006),
    rms_norm_epsilon(1e-6),
    Setting::Switch("use_qk_norm", |c| &mut c.qk_layernorm, true),
    Setting::Group(&RopeForm { theta: 8_000_000.0, percent: Some(1.0), ..RopeForm::USUAL }),
    Setting::Only("score_function", || json!("sigmoid")),
    Setting::Only("moe_router_enable_expert_bias", || json!(true)),
    Setting::Only("use_bias", || json!(false)),
];

/// Names of parameters in files where they differ from GLM-4.5's.
pub(super) const ON_DISK: &[WeightRule] = &[
    rule("embedding.word_embeddings.weight", &["model.word_embeddings.weight"]).fused(Fusion::Vocabulary),
    layer!("self_attention.linear_qkv.weight", "attention.query_key_value.weight").fused(Fusion::PackedQkv),
    layer!("self_attention.linear_qkv.bias", "attention.query_key_value.bias").fused(Fusion::PackedQkv),
    layer!("self_attention.linear_proj.weight", "attention.dense.weight"),
    layer!("self_attention.linear_proj.bias", "attention.dense.bias"),
    layer!("self_attention.q_layernorm.weight", "attention.query_layernorm.weight"),
    layer!("self_attention.k_layernorm.weight", "attention.key_layernorm.weight"),
    layer!("mlp.router.expert_bias", "mlp.gate.expert_bias"),
];
