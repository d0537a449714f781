//! Names of linear attention's parameters, the router's bias and the shared experts.

use crate::huggingface::weight_map::{Fusion, LinearRows, WeightRule, rule};

pub(super) const WEIGHTS: &[WeightRule] = &[
    rule(
        "decoder.layers.{}.self_attention.in_proj.weight",
        &[
            "model.layers.{}.self_attn.q_proj.weight",
            "model.layers.{}.self_attn.k_proj.weight",
            "model.layers.{}.self_attn.v_proj.weight",
            "model.layers.{}.self_attn.b_proj.weight",
        ],
    )
    .fused(Fusion::Linear(&[LinearRows::Keys, LinearRows::Keys, LinearRows::Values, LinearRows::Heads])),
    rule("decoder.layers.{}.self_attention.gate.down_proj.weight", &["model.layers.{}.self_attn.g_a_proj.weight"]),
    rule("decoder.layers.{}.self_attention.gate.up_proj.weight", &["model.layers.{}.self_attn.g_b_proj.weight"]),
    rule("decoder.layers.{}.self_attention.decay.down_proj.weight", &["model.layers.{}.self_attn.f_a_proj.weight"]),
    rule("decoder.layers.{}.self_attention.decay.up_proj.weight", &["model.layers.{}.self_attn.f_b_proj.weight"]),
    rule("decoder.layers.{}.self_attention.A_log", &["model.layers.{}.self_attn.A_log"]).fused(Fusion::PerHead),
    rule(
        "decoder.layers.{}.self_attention.conv1d.weight",
        &[
            "model.layers.{}.self_attn.q_conv1d.weight",
            "model.layers.{}.self_attn.k_conv1d.weight",
            "model.layers.{}.self_attn.v_conv1d.weight",
        ],
    )
    .fused(Fusion::LinearConvolution(&[LinearRows::Keys, LinearRows::Keys, LinearRows::Values])),
    rule("decoder.layers.{}.self_attention.conv1d.weight", &["model.layers.{}.self_attn.conv1d.weight"])
        .fused(Fusion::Convolution)
        .stacked(),
    rule("decoder.layers.{}.self_attention.dt_bias", &["model.layers.{}.self_attn.dt_bias"]),
    rule("decoder.layers.{}.self_attention.out_norm.weight", &["model.layers.{}.self_attn.o_norm.weight"]),
    rule("decoder.layers.{}.self_attention.out_proj.weight", &["model.layers.{}.self_attn.o_proj.weight"]),
    rule(
        "decoder.layers.{}.mlp.router.expert_bias",
        &["model.layers.{}.block_sparse_moe.gate.e_score_correction_bias"],
    ),
    rule(
        "decoder.layers.{}.mlp.shared_experts.linear_fc1.weight",
        &[
            "model.layers.{}.block_sparse_moe.shared_experts.gate_proj.weight",
            "model.layers.{}.block_sparse_moe.shared_experts.up_proj.weight",
        ],
    )
    .fused(Fusion::GateUp),
    rule(
        "decoder.layers.{}.mlp.shared_experts.linear_fc2.weight",
        &["model.layers.{}.block_sparse_moe.shared_experts.down_proj.weight"],
    ),
];
