//! Names of the router and of the experts.

use crate::huggingface::weight_map::{Fusion, WeightRule, rule, stacked};

pub(super) const APART: &[WeightRule] = &[
    rule("decoder.layers.{}.mlp.router.weight", &["model.layers.{/2}.feed_forward.gate.weight"]),
    rule("decoder.layers.{}.mlp.router.expert_bias", &["model.layers.{/2}.feed_forward.expert_bias"]),
    rule(
        "decoder.layers.{}.mlp.experts.local_experts.{}.linear_fc1.weight",
        &["model.layers.{/2}.feed_forward.experts.{}.w1.weight", "model.layers.{/2}.feed_forward.experts.{}.w3.weight"],
    )
    .fused(Fusion::GateUp),
    rule(
        "decoder.layers.{}.mlp.experts.local_experts.{}.linear_fc2.weight",
        &["model.layers.{/2}.feed_forward.experts.{}.w2.weight"],
    ),
];

pub(super) const STACKED: &[WeightRule] = &stacked([
    rule(
        "decoder.layers.{}.mlp.experts.local_experts.{}.linear_fc1.weight",
        &["model.layers.{/2}.feed_forward.experts.gate_up_proj"],
    ),
    rule(
        "decoder.layers.{}.mlp.experts.local_experts.{}.linear_fc2.weight",
        &["model.layers.{/2}.feed_forward.experts.down_proj"],
    ),
]);
