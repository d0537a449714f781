//! Names of the experts in files with separate tensors for each expert.

use crate::families::prelude::*;

pub(crate) const APART: &[WeightRule] = &[
    layer!("mlp.router.weight", "block_sparse_moe.gate.weight"),
    layer!(
        "mlp.experts.local_experts.{}.linear_fc1.weight",
        "block_sparse_moe.experts.{}.w1.weight",
        "block_sparse_moe.experts.{}.w3.weight"
    )
    .fused(Fusion::GateUp),
    layer!("mlp.experts.local_experts.{}.linear_fc2.weight", "block_sparse_moe.experts.{}.w2.weight"),
];
