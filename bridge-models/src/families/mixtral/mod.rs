//! Mixtral: a Llama with experts in every layer.

#[cfg(test)]
mod tests;

use super::prelude::*;
use super::{llama, mixture};

pub(super) static FAMILY: Family = Family {
    model_type: "mixtral",
    architecture: "MixtralForCausalLM",
    settings: SETTINGS,
    weights: &[APART, mixture::STACKED, llama::WEIGHTS],
    module_names: &[(".block_sparse_moe.", ".mlp.")],
    aliases: &[("num_experts", "num_local_experts")],
    ..Family::USUAL
};

/// Settings; absent ones have the values of `MixtralConfig`.
const SETTINGS: &[Setting] = &[
    Setting::Rows(SIZES),
    Setting::KeyValueHeads(8),
    HEAD_SIZE,
    positions(131_072),
    Setting::Always(|c| experts(c).ffn_hidden_size = c.ffn_hidden_size),
    size_or("num_local_experts", |c| &mut experts(c).num_experts, 8),
    size_or("num_experts_per_tok", |c| &mut experts(c).topk, 2),
    Setting::Only("router_jitter_noise", || json!(0.0)),
    Setting::Rows(BLOCKS),
    rms_norm_epsilon(1e-5),
    tied_embeddings(false),
    Setting::Group(&RopeForm { theta: 1_000_000.0, ..RopeForm::USUAL }),
    Setting::Keys { read: |fields, c| windows::read_of_all(fields, c, None), write: windows::write_of_all },
];

/// Names of the experts in files with separate tensors for each expert.
pub(super) const APART: &[WeightRule] = &[
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
pub(super) const SHARED: &[WeightRule] = &[
    layer!(
        "mlp.shared_experts.linear_fc1.weight",
        "block_sparse_moe.shared_experts.gate_proj.weight",
        "block_sparse_moe.shared_experts.up_proj.weight"
    )
    .fused(Fusion::GateUp),
    layer!("mlp.shared_experts.linear_fc2.weight", "block_sparse_moe.shared_experts.down_proj.weight"),
];
