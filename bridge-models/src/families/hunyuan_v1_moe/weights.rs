//! Names of the router and of the shared expert.

use crate::huggingface::weight_map::{Fusion, WeightRule, rule};

pub(super) const OWN: &[WeightRule] = &[
    ROUTER,
    ROUTER.stacked(),
    rule(
        "decoder.layers.{}.mlp.shared_experts.linear_fc1.weight",
        &["model.layers.{}.mlp.shared_mlp.gate_proj.weight", "model.layers.{}.mlp.shared_mlp.up_proj.weight"],
    )
    .fused(Fusion::GateUp),
    rule(
        "decoder.layers.{}.mlp.shared_experts.linear_fc2.weight",
        &["model.layers.{}.mlp.shared_mlp.down_proj.weight"],
    ),
];

const ROUTER: WeightRule = rule("decoder.layers.{}.mlp.router.weight", &["model.layers.{}.mlp.gate.wg.weight"]);
