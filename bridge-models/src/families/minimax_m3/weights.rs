//! Names of the router's bias and of the indexer, and of matrices that the state of a module has in
//! one.

use crate::families::prelude::*;

pub(super) const OWN: &[WeightRule] = &[
    layer!("mlp.router.expert_bias", "block_sparse_moe.e_score_correction_bias"),
    layer!("mlp.router.expert_bias", "mlp.gate.e_score_correction_bias").stacked(),
    layer!("mlp.linear_fc1.weight", "mlp.gate_up_proj.weight").stacked(),
    layer!("mlp.shared_experts.linear_fc1.weight", "mlp.shared_experts.gate_up_proj.weight").stacked(),
    layer!("self_attention.core_attention.indexer.linear_wq_b.weight", "self_attn.index_q_proj.weight"),
    layer!("self_attention.core_attention.indexer.q_norm.weight", "self_attn.index_q_norm.weight"),
    layer!("self_attention.core_attention.indexer.linear_wk.weight", "self_attn.index_k_proj.weight"),
    layer!("self_attention.core_attention.indexer.k_norm.weight", "self_attn.index_k_norm.weight"),
];
