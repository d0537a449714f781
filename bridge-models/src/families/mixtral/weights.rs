//! Names of the experts in files with separate tensors for each expert.

use crate::huggingface::weight_map::{Fusion, WeightRule, rule};

pub(crate) const APART: &[WeightRule] = &[
    rule("decoder.layers.{}.mlp.router.weight", &["model.layers.{}.block_sparse_moe.gate.weight"]),
    rule(
        "decoder.layers.{}.mlp.experts.local_experts.{}.linear_fc1.weight",
        &[
            "model.layers.{}.block_sparse_moe.experts.{}.w1.weight",
            "model.layers.{}.block_sparse_moe.experts.{}.w3.weight",
        ],
    )
    .fused(Fusion::GateUp),
    rule(
        "decoder.layers.{}.mlp.experts.local_experts.{}.linear_fc2.weight",
        &["model.layers.{}.block_sparse_moe.experts.{}.w2.weight"],
    ),
];
