//! Names of the parameters of attention of both kinds, and of the router's bias.

use crate::families::prelude::*;
use crate::huggingface::weight_map::LinearRows;

pub(super) const WEIGHTS: &[WeightRule] = &[
    rule("embedding.word_embeddings.weight", &["model.word_embeddings.weight"]).fused(Fusion::Vocabulary),
    layer!(
        "self_attention.in_proj.weight",
        "attention.q_proj.weight",
        "attention.k_proj.weight",
        "attention.v_proj.weight",
        "attention.g_proj.weight",
        "attention.b_proj.weight",
        "attention.f_proj.weight"
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
        "attention.q_conv1d.weight",
        "attention.k_conv1d.weight",
        "attention.v_conv1d.weight"
    )
    .fused(Fusion::LinearConvolution(&[LinearRows::Keys, LinearRows::Keys, LinearRows::Values])),
    layer!("self_attention.conv1d.weight", "self_attn.conv1d.weight").fused(Fusion::Convolution).stacked(),
    layer!("self_attention.A_log", "attention.A_log"),
    layer!("self_attention.dt_bias", "attention.dt_bias"),
    layer!("self_attention.out_norm.weight", "attention.o_norm.weight"),
    layer!("self_attention.out_proj.weight", "attention.dense.weight"),
    layer!("self_attention.linear_q_proj.weight", "attention.q_proj.weight"),
    layer!("self_attention.linear_q_down_proj.weight", "attention.q_a_proj.weight"),
    layer!("self_attention.linear_q_down_proj.bias", "attention.q_a_proj.bias"),
    layer!("self_attention.q_layernorm.weight", "attention.q_a_layernorm.weight"),
    layer!("self_attention.linear_q_up_proj.weight", "attention.q_b_proj.weight"),
    layer!("self_attention.linear_kv_down_proj.weight", "attention.kv_a_proj_with_mqa.weight"),
    layer!("self_attention.linear_kv_down_proj.bias", "attention.kv_a_proj_with_mqa.bias"),
    layer!("self_attention.kv_layernorm.weight", "attention.kv_a_layernorm.weight"),
    layer!("self_attention.linear_kv_up_proj.weight", "attention.kv_b_proj.weight"),
    layer!("self_attention.linear_gate.weight", "attention.g_proj.weight"),
    layer!("self_attention.linear_proj.weight", "attention.dense.weight"),
    layer!("self_attention.linear_proj.bias", "attention.dense.bias"),
    layer!("mlp.router.expert_bias", "mlp.gate.expert_bias"),
];
