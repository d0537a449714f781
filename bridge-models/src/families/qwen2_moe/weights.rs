//! Names of the expert that all tokens go through, and of its gate.

use crate::huggingface::weight_map::{Fusion, WeightRule, rule};

pub(crate) const SHARED: &[WeightRule] = &[
    rule("decoder.layers.{}.mlp.shared_experts.gate_weight", &["model.layers.{}.mlp.shared_expert_gate.weight"]),
    rule(
        "decoder.layers.{}.mlp.shared_experts.linear_fc1.weight",
        &["model.layers.{}.mlp.shared_expert.gate_proj.weight", "model.layers.{}.mlp.shared_expert.up_proj.weight"],
    )
    .fused(Fusion::GateUp),
    rule(
        "decoder.layers.{}.mlp.shared_experts.linear_fc2.weight",
        &["model.layers.{}.mlp.shared_expert.down_proj.weight"],
    ),
];
