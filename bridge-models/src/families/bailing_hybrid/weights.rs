//! Names of the parameters of attention of both kinds, and of the router's bias.

use crate::huggingface::weight_map::{Fusion, LinearRows, WeightRule, rule};

pub(super) const WEIGHTS: &[WeightRule] = &[
    rule("embedding.word_embeddings.weight", &["model.word_embeddings.weight"]).fused(Fusion::Vocabulary),
    rule(
        "decoder.layers.{}.self_attention.in_proj.weight",
        &[
            "model.layers.{}.attention.q_proj.weight",
            "model.layers.{}.attention.k_proj.weight",
            "model.layers.{}.attention.v_proj.weight",
            "model.layers.{}.attention.g_proj.weight",
            "model.layers.{}.attention.b_proj.weight",
            "model.layers.{}.attention.f_proj.weight",
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
            "model.layers.{}.attention.q_conv1d.weight",
            "model.layers.{}.attention.k_conv1d.weight",
            "model.layers.{}.attention.v_conv1d.weight",
        ],
    )
    .fused(Fusion::LinearConvolution(&[LinearRows::Keys, LinearRows::Keys, LinearRows::Values])),
    rule("decoder.layers.{}.self_attention.conv1d.weight", &["model.layers.{}.self_attn.conv1d.weight"])
        .fused(Fusion::Convolution)
        .stacked(),
    rule("decoder.layers.{}.self_attention.A_log", &["model.layers.{}.attention.A_log"]),
    rule("decoder.layers.{}.self_attention.dt_bias", &["model.layers.{}.attention.dt_bias"]),
    rule("decoder.layers.{}.self_attention.out_norm.weight", &["model.layers.{}.attention.o_norm.weight"]),
    rule("decoder.layers.{}.self_attention.out_proj.weight", &["model.layers.{}.attention.dense.weight"]),
    rule("decoder.layers.{}.self_attention.linear_q_proj.weight", &["model.layers.{}.attention.q_proj.weight"]),
    rule("decoder.layers.{}.self_attention.linear_q_down_proj.weight", &["model.layers.{}.attention.q_a_proj.weight"]),
    rule("decoder.layers.{}.self_attention.linear_q_down_proj.bias", &["model.layers.{}.attention.q_a_proj.bias"]),
    rule("decoder.layers.{}.self_attention.q_layernorm.weight", &["model.layers.{}.attention.q_a_layernorm.weight"]),
    rule("decoder.layers.{}.self_attention.linear_q_up_proj.weight", &["model.layers.{}.attention.q_b_proj.weight"]),
    rule(
        "decoder.layers.{}.self_attention.linear_kv_down_proj.weight",
        &["model.layers.{}.attention.kv_a_proj_with_mqa.weight"],
    ),
    rule(
        "decoder.layers.{}.self_attention.linear_kv_down_proj.bias",
        &["model.layers.{}.attention.kv_a_proj_with_mqa.bias"],
    ),
    rule("decoder.layers.{}.self_attention.kv_layernorm.weight", &["model.layers.{}.attention.kv_a_layernorm.weight"]),
    rule("decoder.layers.{}.self_attention.linear_kv_up_proj.weight", &["model.layers.{}.attention.kv_b_proj.weight"]),
    rule("decoder.layers.{}.self_attention.linear_gate.weight", &["model.layers.{}.attention.g_proj.weight"]),
    rule("decoder.layers.{}.self_attention.linear_proj.weight", &["model.layers.{}.attention.dense.weight"]),
    rule("decoder.layers.{}.self_attention.linear_proj.bias", &["model.layers.{}.attention.dense.bias"]),
    rule("decoder.layers.{}.mlp.router.expert_bias", &["model.layers.{}.mlp.gate.expert_bias"]),
];
