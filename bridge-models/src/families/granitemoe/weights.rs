//! Names of the router and of the experts, which are all in one tensor, in files and in the state
//! of a module.

use crate::families::prelude::*;

pub(super) const ON_DISK: &[WeightRule] = &[
    layer!("mlp.router.weight", "block_sparse_moe.router.layer.weight"),
    layer!("mlp.experts.local_experts.{}.linear_fc1.weight", "block_sparse_moe.input_linear.weight"),
    layer!("mlp.experts.local_experts.{}.linear_fc2.weight", "block_sparse_moe.output_linear.weight"),
];

pub(super) const OF_MODULE: &[WeightRule] = &stacked([
    layer!("mlp.router.weight", "block_sparse_moe.router.weight"),
    layer!("mlp.experts.local_experts.{}.linear_fc1.weight", "block_sparse_moe.experts.gate_up_proj"),
    layer!("mlp.experts.local_experts.{}.linear_fc2.weight", "block_sparse_moe.experts.down_proj"),
]);
