//! Names of feed-forward blocks. All experts of a layer are in one tensor, with matrices `[inputs,
//! outputs]`.

use crate::families::prelude::*;

pub(super) const FEED_FORWARD: &[WeightRule] = &[
    layer!("mlp.linear_fc1.weight", "feed_forward.gate_proj.weight", "feed_forward.up_proj.weight")
        .fused(Fusion::GateUp),
    layer!("mlp.linear_fc2.weight", "feed_forward.down_proj.weight"),
    layer!("mlp.router.weight", "feed_forward.router.weight"),
    layer!(
        "mlp.shared_experts.linear_fc1.weight",
        "feed_forward.shared_expert.gate_proj.weight",
        "feed_forward.shared_expert.up_proj.weight"
    )
    .fused(Fusion::GateUp),
    layer!("mlp.shared_experts.linear_fc2.weight", "feed_forward.shared_expert.down_proj.weight"),
    layer!("mlp.experts.local_experts.{}.linear_fc1.weight", "feed_forward.experts.gate_up_proj")
        .rows_are_inputs()
        .stacked(),
    layer!("mlp.experts.local_experts.{}.linear_fc2.weight", "feed_forward.experts.down_proj")
        .rows_are_inputs()
        .stacked(),
];
