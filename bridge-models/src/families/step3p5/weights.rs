//! Names of the gates on heads, and names in files of the router and the experts, of which a layer
//! has all in one tensor for each of its matrices.

use crate::families::prelude::*;

pub(super) const ON_DISK: &[WeightRule] = &[
    layer!("self_attention.linear_gate.weight", "self_attn.g_proj.weight"),
    layer!("mlp.router.weight", "moe.gate.weight"),
    layer!("mlp.router.expert_bias", "moe.router_bias"),
    layer!("mlp.experts.local_experts.{}.linear_fc1.weight", "moe.gate_proj.weight", "moe.up_proj.weight")
        .fused(Fusion::GateUp),
    layer!("mlp.experts.local_experts.{}.linear_fc2.weight", "moe.down_proj.weight"),
    layer!("mlp.shared_experts.linear_fc1.weight", "share_expert.gate_proj.weight", "share_expert.up_proj.weight")
        .fused(Fusion::GateUp),
    layer!("mlp.shared_experts.linear_fc1.bias", "share_expert.gate_proj.bias", "share_expert.up_proj.bias")
        .fused(Fusion::GateUp),
    layer!("mlp.shared_experts.linear_fc2.weight", "share_expert.down_proj.weight"),
    layer!("mlp.shared_experts.linear_fc2.bias", "share_expert.down_proj.bias"),
];
