//! Names of linear attention's parameters and of the router's bias.

use crate::families::prelude::*;

pub(super) const WEIGHTS: &[WeightRule] = &[
    layer!(
        "self_attention.in_proj.weight",
        "self_attn.q_proj.weight",
        "self_attn.k_proj.weight",
        "self_attn.v_proj.weight",
        "self_attn.b_proj.weight"
    )
    .fused(Fusion::Linear(&[LinearRows::Keys, LinearRows::Keys, LinearRows::Values, LinearRows::Heads])),
    layer!("self_attention.gate.down_proj.weight", "self_attn.g_a_proj.weight"),
    layer!("self_attention.gate.up_proj.weight", "self_attn.g_b_proj.weight"),
    layer!("self_attention.decay.down_proj.weight", "self_attn.f_a_proj.weight"),
    layer!("self_attention.decay.up_proj.weight", "self_attn.f_b_proj.weight"),
    layer!("self_attention.A_log", "self_attn.A_log").fused(Fusion::PerHead),
    layer!(
        "self_attention.conv1d.weight",
        "self_attn.q_conv1d.weight",
        "self_attn.k_conv1d.weight",
        "self_attn.v_conv1d.weight"
    )
    .fused(Fusion::LinearConvolution(LinearRows::QKV)),
    layer!("self_attention.conv1d.weight", "self_attn.conv1d.weight").fused(Fusion::Convolution).stacked(),
    layer!("self_attention.dt_bias", "self_attn.dt_bias"),
    layer!("self_attention.out_norm.weight", "self_attn.o_norm.weight"),
    layer!("self_attention.out_proj.weight", "self_attn.o_proj.weight"),
    layer!("mlp.router.expert_bias", "block_sparse_moe.gate.e_score_correction_bias"),
];
