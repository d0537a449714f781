//! Granite 3 with experts in every layer: Granite's factors, and all experts of a layer in two
//! tensors.

#[cfg(test)]
mod tests;

use super::granite::WITHOUT_MLP_BIAS;
use super::llama;
use super::prelude::*;

pub(super) static FAMILY: Family = Family {
    model_type: "granitemoe",
    architecture: "GraniteMoeForCausalLM",
    settings: SETTINGS,
    weights: &[ON_DISK, OF_MODULE, llama::WEIGHTS],
    ..Family::USUAL
};

/// Settings; absent ones have the values of `GraniteMoeConfig`.
const SETTINGS: &[Setting] = &[
    Setting::Rows(WITHOUT_MLP_BIAS),
    Setting::Always(|c| experts(c).ffn_hidden_size = c.ffn_hidden_size),
    size_or("num_local_experts", |c| &mut experts(c).num_experts, 8),
    size_or("num_experts_per_tok", |c| &mut experts(c).topk, 2),
];

/// Names of the router and of the experts, which are all in one tensor, in files and in the state
/// of a module.
const ON_DISK: &[WeightRule] = &[
    layer!("mlp.router.weight", "block_sparse_moe.router.layer.weight"),
    layer!("mlp.experts.local_experts.{}.linear_fc1.weight", "block_sparse_moe.input_linear.weight"),
    layer!("mlp.experts.local_experts.{}.linear_fc2.weight", "block_sparse_moe.output_linear.weight"),
];

const OF_MODULE: &[WeightRule] = &stacked([
    layer!("mlp.router.weight", "block_sparse_moe.router.weight"),
    layer!("mlp.experts.local_experts.{}.linear_fc1.weight", "block_sparse_moe.experts.gate_up_proj"),
    layer!("mlp.experts.local_experts.{}.linear_fc2.weight", "block_sparse_moe.experts.down_proj"),
]);
