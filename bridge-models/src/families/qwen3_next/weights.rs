//! Names of the parameters of linear attention and of gated softmax attention.

use crate::families::prelude::*;

/// The projection in two tensors that are ordered by key heads.
pub(super) const BY_HEAD: &[WeightRule] =
    &[layer!("self_attention.in_proj.weight", "linear_attn.in_proj_qkvz.weight", "linear_attn.in_proj_ba.weight")
        .fused(Fusion::LinearByHead)];

/// The other parameters of both kinds of attention. Rows of queries and of their gates alternate by
/// heads.
pub(crate) const HYBRID: &[WeightRule] = &[
    layer!(
        "self_attention.linear_qkv.weight",
        "self_attn.q_proj.weight",
        "self_attn.k_proj.weight",
        "self_attn.v_proj.weight"
    )
    .fused(Fusion::GatedQkv),
    layer!("self_attention.linear_qkv.bias", "self_attn.q_proj.bias", "self_attn.k_proj.bias", "self_attn.v_proj.bias")
        .fused(Fusion::GatedQkv),
    layer!("self_attention.conv1d.weight", "linear_attn.conv1d.weight").fused(Fusion::Convolution),
    layer!("self_attention.A_log", "linear_attn.A_log"),
    layer!("self_attention.dt_bias", "linear_attn.dt_bias"),
    layer!("self_attention.out_norm.weight", "linear_attn.norm.weight"),
    layer!("self_attention.out_proj.weight", "linear_attn.out_proj.weight"),
];
