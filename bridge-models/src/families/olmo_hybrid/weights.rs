//! Names of linear attention's parameters, and of the norms of its layers.

use crate::families::prelude::*;
use crate::huggingface::weight_map::LinearRows;

pub(super) const WEIGHTS: &[WeightRule] = &[
    layer!("input_layernorm.weight", "attention_layer_norm.weight"),
    layer!("pre_mlp_layernorm.weight", "feedforward_layer_norm.weight"),
    layer!(
        "self_attention.in_proj.weight",
        "linear_attn.q_proj.weight",
        "linear_attn.k_proj.weight",
        "linear_attn.v_proj.weight",
        "linear_attn.g_proj.weight",
        "linear_attn.b_proj.weight",
        "linear_attn.a_proj.weight"
    )
    .fused(Fusion::Linear(&[
        LinearRows::Keys,
        LinearRows::Keys,
        LinearRows::Values,
        LinearRows::Values,
        LinearRows::Heads,
        LinearRows::Decays,
    ])),
    layer!(
        "self_attention.conv1d.weight",
        "linear_attn.q_conv1d.weight",
        "linear_attn.k_conv1d.weight",
        "linear_attn.v_conv1d.weight"
    )
    .fused(Fusion::LinearConvolution(&[LinearRows::Keys, LinearRows::Keys, LinearRows::Values])),
    layer!("self_attention.conv1d.weight", "linear_attn.conv1d.weight").fused(Fusion::Convolution).stacked(),
    layer!("self_attention.A_log", "linear_attn.A_log"),
    layer!("self_attention.dt_bias", "linear_attn.dt_bias"),
    layer!("self_attention.out_norm.weight", "linear_attn.o_norm.weight"),
    layer!("self_attention.out_proj.weight", "linear_attn.o_proj.weight"),
];
