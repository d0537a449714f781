//! Names of the expert that all tokens go through, and of its gate.

use crate::families::prelude::*;

pub(crate) const SHARED: &[WeightRule] = &[
    layer!("mlp.shared_experts.gate_weight", "mlp.shared_expert_gate.weight"),
    layer!(
        "mlp.shared_experts.linear_fc1.weight",
        "mlp.shared_expert.gate_proj.weight",
        "mlp.shared_expert.up_proj.weight"
    )
    .fused(Fusion::GateUp),
    layer!("mlp.shared_experts.linear_fc2.weight", "mlp.shared_expert.down_proj.weight"),
];
