//! AFMoE (Trinity): norms before and after blocks, gates on attention's output, rotation in
//! windowed layers only, a few dense layers, then experts behind a sigmoid router and a shared one.

#[cfg(test)]
mod tests;

use super::mixture::{self, ExpertFactor, FirstDense, SharedExperts, sigmoid_router};
use super::prelude::*;
use super::{llama, qwen3};
use crate::huggingface::windows::WindowedRope;

pub(super) static FAMILY: Family = Family {
    model_type: "afmoe",
    architecture: "AfmoeForCausalLM",
    settings: SETTINGS,
    weights: &[OWN, qwen3::QK_NORMS, mixture::SHARED, mixture::APART, mixture::STACKED, llama::WEIGHTS],
    ..Family::USUAL
};

/// Settings; absent ones have the values of `AfmoeConfig`.
const SETTINGS: &[Setting] = &[
    Setting::Rows(SIZES),
    head_size(128),
    positions(16_384),
    Setting::Always(|c| {
        c.residual.norms = NormPlacement::Sandwich;
        c.qk_layernorm = true;
        c.output_gate = Some(OutputGateForm::Element);
        sigmoid_router(c);
    }),
    size_or("moe_intermediate_size", |c| &mut experts(c).ffn_hidden_size, 1408),
    size_or("num_experts", |c| &mut experts(c).num_experts, 64),
    size_or("num_experts_per_tok", |c| &mut experts(c).topk, 6),
    Setting::Group(&FirstDense("num_dense_layers", 1)),
    Setting::Group(&SharedExperts("num_shared_experts", Some(2))),
    Setting::Group(&ExpertFactor("route_scale", 1.0)),
    Setting::Rows(BLOCKS),
    Setting::Rows(ATTENTION_BIAS),
    rms_norm_epsilon(1e-5),
    tied_embeddings(false),
    Setting::Flag(
        "mup_enabled",
        false,
        |c| c.embedding_multiplier != 1.0,
        |c, on| c.embedding_multiplier = if on { (c.hidden_size as f64).sqrt() } else { 1.0 },
    ),
    Setting::Keys {
        read: |fields, c| {
            let pattern = fields.size("global_attn_every_n_layers")?.unwrap_or(4);
            windows::read_pattern(fields, c, 1024, pattern)
        },
        write: windows::write_pattern,
    },
    Setting::Group(&WindowedRope(RopeForm::USUAL)),
];

/// Names of the parameters that Llama does not have.
const OWN: &[WeightRule] = &[
    layer!("post_self_attention_layernorm.weight", "post_attention_layernorm.weight"),
    layer!("pre_mlp_layernorm.weight", "pre_mlp_layernorm.weight"),
    layer!("post_mlp_layernorm.weight", "post_mlp_layernorm.weight"),
    layer!("self_attention.linear_gate.weight", "self_attn.gate_proj.weight"),
    ROUTER,
    ROUTER.stacked(),
    layer!("mlp.router.expert_bias", "mlp.expert_bias"),
];

const ROUTER: WeightRule = layer!("mlp.router.weight", "mlp.router.gate.weight");
