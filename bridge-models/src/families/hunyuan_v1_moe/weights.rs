//! Names of the router and of the shared expert.

use crate::families::prelude::*;

pub(super) const OWN: &[WeightRule] = &[
    ROUTER,
    ROUTER.stacked(),
    layer!("mlp.shared_experts.linear_fc1.weight", "mlp.shared_mlp.gate_proj.weight", "mlp.shared_mlp.up_proj.weight")
        .fused(Fusion::GateUp),
    layer!("mlp.shared_experts.linear_fc2.weight", "mlp.shared_mlp.down_proj.weight"),
];

const ROUTER: WeightRule = layer!("mlp.router.weight", "mlp.gate.wg.weight");
