//! Names of parameters that LFM2 does not have, or calls otherwise.

use crate::families::prelude::*;

pub(super) const OWN: &[WeightRule] = &[
    half_layer!("post_norm.weight", "post_operator_norm.weight"),
    half_layer!("post_self_attention_layernorm.weight", "post_operator_norm.weight"),
    half_layer!("post_mlp_layernorm.weight", "post_ffn_norm.weight"),
    half_layer!("self_attention.q_layernorm.weight", "self_attn.q_norm.weight"),
    half_layer!("self_attention.k_layernorm.weight", "self_attn.k_norm.weight"),
    half_layer!("self_attention.linear_gate.weight", "self_attn.gate_proj.weight"),
    half_layer!("self_attention.linear_proj.weight", "self_attn.o_proj.weight"),
];
