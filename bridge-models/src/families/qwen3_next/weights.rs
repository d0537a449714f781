//! Names of the parameters of linear attention and of gated softmax attention.

use crate::huggingface::weight_map::{Fusion, WeightRule, rule};

/// The projection in two tensors that are ordered by key heads.
pub(super) const BY_HEAD: &[WeightRule] = &[rule(
    "decoder.layers.{}.self_attention.in_proj.weight",
    &["model.layers.{}.linear_attn.in_proj_qkvz.weight", "model.layers.{}.linear_attn.in_proj_ba.weight"],
)
.fused(Fusion::LinearByHead)];

/// The other parameters of both kinds of attention. Rows of queries and of their gates alternate by
/// heads.
pub(crate) const HYBRID: &[WeightRule] = &[
    rule(
        "decoder.layers.{}.self_attention.linear_qkv.weight",
        &[
            "model.layers.{}.self_attn.q_proj.weight",
            "model.layers.{}.self_attn.k_proj.weight",
            "model.layers.{}.self_attn.v_proj.weight",
        ],
    )
    .fused(Fusion::GatedQkv),
    rule(
        "decoder.layers.{}.self_attention.linear_qkv.bias",
        &[
            "model.layers.{}.self_attn.q_proj.bias",
            "model.layers.{}.self_attn.k_proj.bias",
            "model.layers.{}.self_attn.v_proj.bias",
        ],
    )
    .fused(Fusion::GatedQkv),
    rule("decoder.layers.{}.self_attention.conv1d.weight", &["model.layers.{}.linear_attn.conv1d.weight"])
        .fused(Fusion::Convolution),
    rule("decoder.layers.{}.self_attention.A_log", &["model.layers.{}.linear_attn.A_log"]),
    rule("decoder.layers.{}.self_attention.dt_bias", &["model.layers.{}.linear_attn.dt_bias"]),
    rule("decoder.layers.{}.self_attention.out_norm.weight", &["model.layers.{}.linear_attn.norm.weight"]),
    rule("decoder.layers.{}.self_attention.out_proj.weight", &["model.layers.{}.linear_attn.out_proj.weight"]),
];
