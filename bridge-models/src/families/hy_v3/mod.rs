//! Hunyuan 3: attention with norms of queries and keys per head, a dense layer, then experts behind
//! a sigmoid router without groups, and an expert that all tokens go through. Layers of multi-token
//! prediction in published files are ignored, as in transformers.

#[cfg(test)]
mod tests;

use super::mixture::{self, ExpertFactor, MlpLayerTypes, SharedExperts, sigmoid_router};
use super::prelude::*;
use super::{llama, qwen3};

pub(super) static FAMILY: Family = Family {
    model_type: "hy_v3",
    architecture: "HYV3ForCausalLM",
    settings: SETTINGS,
    weights: &[
        qwen3::QK_NORMS,
        ON_DISK,
        OF_MODULE,
        mixture::APART,
        mixture::STACKED,
        mixture::SHARED_IN_MODULE,
        llama::WEIGHTS,
    ],
    module_names: &[(".mlp.router.gate.", ".mlp.gate."), (".mlp.shared_mlp.", ".mlp.shared_experts.")],
    dropped: &["model.layers.80."],
    aliases: &[("num_local_experts", "num_experts")],
    ..Family::USUAL
};

/// Settings; absent ones have the values of `HYV3Config`.
const SETTINGS: &[Setting] = &[
    Setting::Rows(SIZES),
    Setting::KeyValueHeads(8),
    head_size(128),
    positions(131_072),
    Setting::Always(|c| {
        c.qk_layernorm = true;
        sigmoid_router(c);
    }),
    size_or("moe_intermediate_size", |c| &mut experts(c).ffn_hidden_size, 1536),
    size_or("num_experts", |c| &mut experts(c).num_experts, 192),
    size_or("num_experts_per_tok", |c| &mut experts(c).topk, 8),
    Setting::Group(&ExpertFactor("router_scaling_factor", 2.826)),
    Setting::Group(&SharedExperts("num_shared_experts", Some(1))),
    Setting::Group(&MlpLayerTypes(None)),
    Setting::Rows(BLOCKS),
    initializer_range(0.006),
    Setting::Rows(ATTENTION_BIAS),
    MLP_BIAS,
    rms_norm_epsilon(1e-5),
    tied_embeddings(false),
    Setting::Group(&RopeForm { theta: 11_158_840.0, ..RopeForm::USUAL }),
    // Sums of two numbers in 16 bits are computed in float32 and rounded with it and without.
    Setting::Unused(&["enable_moe_fp32_combine"]),
];

/// Names of the router and of the expert that all tokens go through: those of files, and those of
/// the state of a module, where they differ from DeepSeek-V3's.
const ON_DISK: &[WeightRule] = &[
    layer!("mlp.router.weight", "mlp.router.gate.weight"),
    layer!("mlp.router.expert_bias", "mlp.expert_bias"),
    layer!("mlp.shared_experts.linear_fc1.weight", "mlp.shared_mlp.gate_proj.weight", "mlp.shared_mlp.up_proj.weight")
        .fused(Fusion::GateUp),
    layer!("mlp.shared_experts.linear_fc1.bias", "mlp.shared_mlp.gate_proj.bias", "mlp.shared_mlp.up_proj.bias")
        .fused(Fusion::GateUp),
    layer!("mlp.shared_experts.linear_fc2.weight", "mlp.shared_mlp.down_proj.weight"),
    layer!("mlp.shared_experts.linear_fc2.bias", "mlp.shared_mlp.down_proj.bias"),
];

const OF_MODULE: &[WeightRule] = &[layer!("mlp.router.expert_bias", "mlp.e_score_correction_bias").stacked()];
