//! Names of the router and of the expert that all tokens go through: those of files, and those of
//! the state of a module, where they differ from DeepSeek-V3's.

use crate::huggingface::weight_map::{Fusion, WeightRule, rule};

pub(super) const ON_DISK: &[WeightRule] = &[
    rule("decoder.layers.{}.mlp.router.weight", &["model.layers.{}.mlp.router.gate.weight"]),
    rule("decoder.layers.{}.mlp.router.expert_bias", &["model.layers.{}.mlp.expert_bias"]),
    rule(
        "decoder.layers.{}.mlp.shared_experts.linear_fc1.weight",
        &["model.layers.{}.mlp.shared_mlp.gate_proj.weight", "model.layers.{}.mlp.shared_mlp.up_proj.weight"],
    )
    .fused(Fusion::GateUp),
    rule(
        "decoder.layers.{}.mlp.shared_experts.linear_fc1.bias",
        &["model.layers.{}.mlp.shared_mlp.gate_proj.bias", "model.layers.{}.mlp.shared_mlp.up_proj.bias"],
    )
    .fused(Fusion::GateUp),
    rule(
        "decoder.layers.{}.mlp.shared_experts.linear_fc2.weight",
        &["model.layers.{}.mlp.shared_mlp.down_proj.weight"],
    ),
    rule("decoder.layers.{}.mlp.shared_experts.linear_fc2.bias", &["model.layers.{}.mlp.shared_mlp.down_proj.bias"]),
];

pub(super) const OF_MODULE: &[WeightRule] =
    &[rule("decoder.layers.{}.mlp.router.expert_bias", &["model.layers.{}.mlp.e_score_correction_bias"]).stacked()];
