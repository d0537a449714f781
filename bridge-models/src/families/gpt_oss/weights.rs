//! Names of the sinks, the router and the experts. All experts of a layer are in one tensor, their
//! matrices `[inputs, outputs]`, and outputs of the gate and of the values alternate.

use crate::families::prelude::*;

pub(super) const WEIGHTS: &[WeightRule] = &[
    layer!("self_attention.core_attention.softmax_offset", "self_attn.sinks"),
    layer!("mlp.router.weight", "mlp.router.weight"),
    layer!("mlp.router.bias", "mlp.router.bias"),
    layer!("mlp.experts.local_experts.{}.linear_fc1.weight", "mlp.experts.gate_up_proj")
        .fused(Fusion::Alternating)
        .rows_are_inputs()
        .stacked(),
    layer!("mlp.experts.local_experts.{}.linear_fc1.bias", "mlp.experts.gate_up_proj_bias")
        .fused(Fusion::Alternating)
        .stacked(),
    layer!("mlp.experts.local_experts.{}.linear_fc2.weight", "mlp.experts.down_proj").rows_are_inputs().stacked(),
    layer!("mlp.experts.local_experts.{}.linear_fc2.bias", "mlp.experts.down_proj_bias").stacked(),
];
