//! Names of the router and of the experts.

use crate::families::prelude::*;

pub(super) const APART: &[WeightRule] = &[
    half_layer!("mlp.router.weight", "feed_forward.router.weight"),
    half_layer!(
        "mlp.experts.local_experts.{}.linear_fc1.weight",
        "feed_forward.experts.{}.gate_proj.weight",
        "feed_forward.experts.{}.up_proj.weight"
    )
    .fused(Fusion::GateUp),
    half_layer!("mlp.experts.local_experts.{}.linear_fc2.weight", "feed_forward.experts.{}.down_proj.weight"),
];

pub(super) const STACKED: &[WeightRule] = &stacked([
    half_layer!("mlp.experts.local_experts.{}.linear_fc1.weight", "feed_forward.experts.gate_up_proj"),
    half_layer!("mlp.experts.local_experts.{}.linear_fc2.weight", "feed_forward.experts.down_proj"),
]);
