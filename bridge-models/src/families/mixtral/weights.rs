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

/// Names of the block of experts that all tokens go through, in such files.
pub(crate) const SHARED: &[WeightRule] = &[
    layer!(
        "mlp.shared_experts.linear_fc1.weight",
        "block_sparse_moe.shared_experts.gate_proj.weight",
        "block_sparse_moe.shared_experts.up_proj.weight"
    )
    .fused(Fusion::GateUp),
    layer!("mlp.shared_experts.linear_fc2.weight", "block_sparse_moe.shared_experts.down_proj.weight"),
];
