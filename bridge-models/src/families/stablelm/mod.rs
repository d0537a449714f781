//! StableLM: a Llama with LayerNorm, a quarter of each head rotated, and optional norms with
//! weights for each query and key head.

#[cfg(test)]
mod tests;

use super::cohere::norm_of_each_head;
use super::prelude::*;
use super::rows::EqualHeads;
use super::{llama, starcoder2};

pub(super) static FAMILY: Family = Family {
    model_type: "stablelm",
    architecture: "StableLmForCausalLM",
    settings: SETTINGS,
    weights: &[QK_NORMS, starcoder2::NORM_BIASES, llama::WEIGHTS],
    ..Family::USUAL
};

/// Settings; absent ones have the values of `StableLmConfig`.
const SETTINGS: &[Setting] = &[
    Setting::Rows(SIZES),
    Setting::KeyValueHeads(32),
    Setting::Group(&EqualHeads { width: "hidden_size", heads: "num_attention_heads" }),
    positions(4096),
    Setting::Always(|c| {
        c.norm.kind = Normalization::LayerNorm;
        c.gated_linear_unit = true;
    }),
    USUAL_SOFTMAX_SCALE,
    Setting::Activation("hidden_act", |c| &mut c.activation, Activation::Silu),
    initializer_range(0.02),
    Setting::Number("layer_norm_eps", |c| &mut c.norm.epsilon, 1e-5),
    Setting::Number("attention_dropout", |c| &mut c.attention_dropout, 0.0),
    Setting::Rule(|fields, _| {
        let rate = fields.number("hidden_dropout")?.unwrap_or(0.0);
        let expected = "0: dropout of the feed-forward block alone is not implemented";
        fields.require(rate == 0.0, "hidden_dropout", &rate.to_string(), expected)
    }),
    Setting::Switch("use_qkv_bias", |c| &mut c.qkv_bias, false),
    tied_embeddings(false),
    norm_of_each_head("qk_layernorm"),
    Setting::Flag(
        "use_parallel_residual",
        false,
        |c| c.residual.blocks == BlockOrder::ParallelSharedNorm,
        |c, on| c.residual.blocks = if on { BlockOrder::ParallelSharedNorm } else { BlockOrder::Sequential },
    ),
    Setting::Group(&RopeForm { percent: Some(0.25), ..RopeForm::USUAL }),
];

/// Names of the norms of queries and keys, a module for each head.
const QK_NORMS: &[WeightRule] = &[
    layer!("self_attention.q_layernorm.weight", "self_attn.q_layernorm.norms.{head}.weight").fused(Fusion::EachHead),
    layer!("self_attention.k_layernorm.weight", "self_attn.k_layernorm.norms.{head}.weight").fused(Fusion::EachHead),
];
