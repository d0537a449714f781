//! Names of the sinks, the router and the experts. All experts of a layer are in one tensor, their
//! matrices `[inputs, outputs]`, and outputs of the gate and of the values alternate.

use crate::huggingface::weight_map::{Fusion, WeightRule, rule};

pub(super) const WEIGHTS: &[WeightRule] = &[
    rule("decoder.layers.{}.self_attention.core_attention.softmax_offset", &["model.layers.{}.self_attn.sinks"]),
    rule("decoder.layers.{}.mlp.router.weight", &["model.layers.{}.mlp.router.weight"]),
    rule("decoder.layers.{}.mlp.router.bias", &["model.layers.{}.mlp.router.bias"]),
    rule(
        "decoder.layers.{}.mlp.experts.local_experts.{}.linear_fc1.weight",
        &["model.layers.{}.mlp.experts.gate_up_proj"],
    )
    .fused(Fusion::Alternating)
    .rows_are_inputs()
    .stacked(),
    rule(
        "decoder.layers.{}.mlp.experts.local_experts.{}.linear_fc1.bias",
        &["model.layers.{}.mlp.experts.gate_up_proj_bias"],
    )
    .fused(Fusion::Alternating)
    .stacked(),
    rule(
        "decoder.layers.{}.mlp.experts.local_experts.{}.linear_fc2.weight",
        &["model.layers.{}.mlp.experts.down_proj"],
    )
    .rows_are_inputs()
    .stacked(),
    rule(
        "decoder.layers.{}.mlp.experts.local_experts.{}.linear_fc2.bias",
        &["model.layers.{}.mlp.experts.down_proj_bias"],
    )
    .stacked(),
];
