//! Names of the feed-forward blocks, each with its gate and its values in one matrix, and of the
//! experts, which are all in one tensor, in files and in the state of a module.

use crate::families::prelude::*;

pub(super) const WEIGHTS: &[WeightRule] = &[
    half_layer!("pre_mlp_layernorm.weight", "post_attention_layernorm.weight"),
    half_layer!("mlp.linear_fc1.weight", "shared_mlp.input_linear.weight"),
    half_layer!("mlp.linear_fc2.weight", "shared_mlp.output_linear.weight"),
    half_layer!("mlp.shared_experts.linear_fc1.weight", "shared_mlp.input_linear.weight"),
    half_layer!("mlp.shared_experts.linear_fc2.weight", "shared_mlp.output_linear.weight"),
];

pub(super) const ON_DISK: &[WeightRule] = &[
    half_layer!("mlp.router.weight", "block_sparse_moe.router.layer.weight"),
    half_layer!("mlp.experts.local_experts.{}.linear_fc1.weight", "block_sparse_moe.input_linear.weight"),
    half_layer!("mlp.experts.local_experts.{}.linear_fc2.weight", "block_sparse_moe.output_linear.weight"),
];

pub(super) const OF_MODULE: &[WeightRule] = &stacked([
    half_layer!("mlp.router.weight", "block_sparse_moe.router.weight"),
    half_layer!("mlp.experts.local_experts.{}.linear_fc1.weight", "block_sparse_moe.experts.gate_up_proj"),
    half_layer!("mlp.experts.local_experts.{}.linear_fc2.weight", "block_sparse_moe.experts.down_proj"),
]);
