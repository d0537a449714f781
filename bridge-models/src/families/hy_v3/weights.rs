//! Names of the router and of the expert that all tokens go through: those of files, and those of
//! the state of a module, where they differ from DeepSeek-V3's.

use crate::families::prelude::*;

pub(super) const ON_DISK: &[WeightRule] = &[
    layer!("mlp.router.weight", "mlp.router.gate.weight"),
    layer!("mlp.router.expert_bias", "mlp.expert_bias"),
    layer!("mlp.shared_experts.linear_fc1.weight", "mlp.shared_mlp.gate_proj.weight", "mlp.shared_mlp.up_proj.weight")
        .fused(Fusion::GateUp),
    layer!("mlp.shared_experts.linear_fc1.bias", "mlp.shared_mlp.gate_proj.bias", "mlp.shared_mlp.up_proj.bias")
        .fused(Fusion::GateUp),
    layer!("mlp.shared_experts.linear_fc2.weight", "mlp.shared_mlp.down_proj.weight"),
    layer!("mlp.shared_experts.linear_fc2.bias", "mlp.shared_mlp.down_proj.bias"),
];

pub(super) const OF_MODULE: &[WeightRule] =
    &[layer!("mlp.router.expert_bias", "mlp.e_score_correction_bias").stacked()];
