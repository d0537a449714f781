//! Names of Zamba2's parameters. The first layer that uses a shared block holds it, with the
//! branches of all layers that use it.

use crate::families::prelude::*;

/// A Mamba-2 layer, with its norm.
macro_rules! mamba {
    ($ours:literal, $theirs:literal, $mixer:literal) => {
        [
            rule(concat!($ours, "norm.weight"), &[concat!($theirs, "input_layernorm.weight")]),
            rule(concat!($ours, "mixer.in_proj.weight"), &[concat!($theirs, $mixer, "in_proj.weight")]),
            rule(concat!($ours, "mixer.in_proj.bias"), &[concat!($theirs, $mixer, "in_proj.bias")]),
            rule(concat!($ours, "mixer.conv1d.weight"), &[concat!($theirs, $mixer, "conv1d.weight")])
                .fused(Fusion::Convolution),
            rule(concat!($ours, "mixer.conv1d.bias"), &[concat!($theirs, $mixer, "conv1d.bias")]),
            rule(concat!($ours, "mixer.A_log"), &[concat!($theirs, $mixer, "A_log")]),
            rule(concat!($ours, "mixer.D"), &[concat!($theirs, $mixer, "D")]),
            rule(concat!($ours, "mixer.dt_bias"), &[concat!($theirs, $mixer, "dt_bias")]),
            rule(concat!($ours, "mixer.norm.weight"), &[concat!($theirs, $mixer, "norm.weight")]),
            rule(concat!($ours, "mixer.out_proj.weight"), &[concat!($theirs, $mixer, "out_proj.weight")]),
            rule(concat!($ours, "mixer.out_proj.bias"), &[concat!($theirs, $mixer, "out_proj.bias")]),
        ]
    };
}

pub(super) const PLAIN: &[WeightRule] = &mamba!("decoder.layers.{}.", "model.layers.{}.", "mamba.");

pub(super) const WITH_SHARED: &[WeightRule] =
    &mamba!("decoder.layers.{}.mamba.", "model.layers.{}.mamba_decoder.", "mamba.");

/// Name of a tensor of a shared block.
macro_rules! shared {
    ($($name:literal),+) => {
        concat!("model.layers.{}.shared_transformer.", $($name),+)
    };
}

/// One of the two matrices of a branch.
macro_rules! branch {
    ($ours:literal, $theirs:literal) => {
        rule(concat!("decoder.layers.{}.adapters.{}.", $ours, ".weight"), &[shared!($theirs, ".weight")])
    };
}

pub(super) const BRANCHES: &[WeightRule] = &[
    branch!("mlp.down", "feed_forward.gate_up_proj_adapter_list.{}.0"),
    branch!("mlp.up", "feed_forward.gate_up_proj_adapter_list.{}.1"),
    branch!("query.down", "self_attn.linear_q_adapter_list.{}.0"),
    branch!("query.up", "self_attn.linear_q_adapter_list.{}.1"),
    branch!("key.down", "self_attn.linear_k_adapter_list.{}.0"),
    branch!("key.up", "self_attn.linear_k_adapter_list.{}.1"),
    branch!("value.down", "self_attn.linear_v_adapter_list.{}.0"),
    branch!("value.up", "self_attn.linear_v_adapter_list.{}.1"),
];

pub(super) const BLOCK: &[WeightRule] = &[
    layer!("linear.weight", "linear.weight"),
    rule("decoder.layers.{}.shared_block.input_layernorm.weight", &[shared!("input_layernorm.weight")]),
    rule(
        "decoder.layers.{}.shared_block.self_attention.linear_qkv.weight",
        &[shared!("self_attn.q_proj.weight"), shared!("self_attn.k_proj.weight"), shared!("self_attn.v_proj.weight")],
    )
    .fused(Fusion::Qkv),
    rule("decoder.layers.{}.shared_block.self_attention.linear_proj.weight", &[shared!("self_attn.o_proj.weight")]),
    rule("decoder.layers.{}.shared_block.pre_mlp_layernorm.weight", &[shared!("pre_ff_layernorm.weight")]),
    rule("decoder.layers.{}.shared_block.mlp.linear_fc1.weight", &[shared!("feed_forward.gate_up_proj.weight")]),
    rule("decoder.layers.{}.shared_block.mlp.linear_fc1.bias", &[shared!("feed_forward.gate_up_proj.bias")]),
    rule("decoder.layers.{}.shared_block.mlp.linear_fc2.weight", &[shared!("feed_forward.down_proj.weight")]),
    rule("decoder.layers.{}.shared_block.mlp.linear_fc2.bias", &[shared!("feed_forward.down_proj.bias")]),
    rule("decoder.final_layernorm.weight", &["model.final_layernorm.weight"]),
];
