//! Names of linear attention's parameters, and of the norms of its layers.

use crate::huggingface::weight_map::{Fusion, LinearRows, WeightRule, rule};

pub(super) const WEIGHTS: &[WeightRule] = &[
    rule("decoder.layers.{}.input_layernorm.weight", &["model.layers.{}.attention_layer_norm.weight"]),
    rule("decoder.layers.{}.pre_mlp_layernorm.weight", &["model.layers.{}.feedforward_layer_norm.weight"]),
    rule(
        "decoder.layers.{}.self_attention.in_proj.weight",
        &[
            "model.layers.{}.linear_attn.q_proj.weight",
            "model.layers.{}.linear_attn.k_proj.weight",
            "model.layers.{}.linear_attn.v_proj.weight",
            "model.layers.{}.linear_attn.g_proj.weight",
            "model.layers.{}.linear_attn.b_proj.weight",
            "model.layers.{}.linear_attn.a_proj.weight",
        ],
    )
    .fused(Fusion::Linear(&[
        LinearRows::Keys,
        LinearRows::Keys,
        LinearRows::Values,
        LinearRows::Values,
        LinearRows::Heads,
        LinearRows::Decays,
    ])),
    rule(
        "decoder.layers.{}.self_attention.conv1d.weight",
        &[
            "model.layers.{}.linear_attn.q_conv1d.weight",
            "model.layers.{}.linear_attn.k_conv1d.weight",
            "model.layers.{}.linear_attn.v_conv1d.weight",
        ],
    )
    .fused(Fusion::LinearConvolution(&[LinearRows::Keys, LinearRows::Keys, LinearRows::Values])),
    rule("decoder.layers.{}.self_attention.conv1d.weight", &["model.layers.{}.linear_attn.conv1d.weight"])
        .fused(Fusion::Convolution)
        .stacked(),
    rule("decoder.layers.{}.self_attention.A_log", &["model.layers.{}.linear_attn.A_log"]),
    rule("decoder.layers.{}.self_attention.dt_bias", &["model.layers.{}.linear_attn.dt_bias"]),
    rule("decoder.layers.{}.self_attention.out_norm.weight", &["model.layers.{}.linear_attn.o_norm.weight"]),
    rule("decoder.layers.{}.self_attention.out_proj.weight", &["model.layers.{}.linear_attn.o_proj.weight"]),
];
