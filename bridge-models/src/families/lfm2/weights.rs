//! Names of LFM2's parameters.

use crate::families::prelude::*;

pub(crate) const MIXERS: &[WeightRule] = &[
    half_layer!("norm.weight", "operator_norm.weight"),
    half_layer!("input_layernorm.weight", "operator_norm.weight"),
    half_layer!("mixer.in_proj.weight", "conv.in_proj.weight"),
    half_layer!("mixer.in_proj.bias", "conv.in_proj.bias"),
    half_layer!("mixer.conv.weight", "conv.conv.weight").fused(Fusion::Convolution),
    half_layer!("mixer.conv.bias", "conv.conv.bias"),
    half_layer!("mixer.out_proj.weight", "conv.out_proj.weight"),
    half_layer!("mixer.out_proj.bias", "conv.out_proj.bias"),
    half_layer!(
        "self_attention.linear_qkv.weight",
        "self_attn.q_proj.weight",
        "self_attn.k_proj.weight",
        "self_attn.v_proj.weight"
    )
    .fused(Fusion::Qkv),
    half_layer!("self_attention.q_layernorm.weight", "self_attn.q_layernorm.weight"),
    half_layer!("self_attention.k_layernorm.weight", "self_attn.k_layernorm.weight"),
    half_layer!("self_attention.linear_proj.weight", "self_attn.out_proj.weight"),
];

pub(crate) const FEED_FORWARD: &[WeightRule] = &[
    half_layer!("pre_mlp_layernorm.weight", "ffn_norm.weight"),
    half_layer!("mlp.linear_fc1.weight", "feed_forward.w1.weight", "feed_forward.w3.weight").fused(Fusion::GateUp),
    half_layer!("mlp.linear_fc2.weight", "feed_forward.w2.weight"),
    rule("decoder.final_layernorm.weight", &["model.embedding_norm.weight"]),
];
