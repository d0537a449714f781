//! Names of LongCat-Flash's parameters: a file's layer has two of each block, and the experts.

use crate::families::prelude::*;

pub(super) const OWN: &[WeightRule] = &[
    half_layer!("input_layernorm.weight", "input_layernorm.{%2}.weight"),
    half_layer!("pre_mlp_layernorm.weight", "post_attention_layernorm.{%2}.weight"),
    half_layer!("self_attention.linear_q_down_proj.weight", "self_attn.{%2}.q_a_proj.weight"),
    half_layer!("self_attention.linear_q_down_proj.bias", "self_attn.{%2}.q_a_proj.bias"),
    half_layer!("self_attention.q_layernorm.weight", "self_attn.{%2}.q_a_layernorm.weight"),
    half_layer!("self_attention.linear_q_up_proj.weight", "self_attn.{%2}.q_b_proj.weight"),
    half_layer!("self_attention.linear_kv_down_proj.weight", "self_attn.{%2}.kv_a_proj_with_mqa.weight"),
    half_layer!("self_attention.linear_kv_down_proj.bias", "self_attn.{%2}.kv_a_proj_with_mqa.bias"),
    half_layer!("self_attention.kv_layernorm.weight", "self_attn.{%2}.kv_a_layernorm.weight"),
    half_layer!("self_attention.linear_kv_up_proj.weight", "self_attn.{%2}.kv_b_proj.weight"),
    half_layer!("self_attention.linear_proj.weight", "self_attn.{%2}.o_proj.weight"),
    half_layer!("self_attention.linear_proj.bias", "self_attn.{%2}.o_proj.bias"),
    half_layer!("mlp.linear_fc1.weight", "mlps.{%2}.gate_proj.weight", "mlps.{%2}.up_proj.weight")
        .fused(Fusion::GateUp),
    half_layer!("mlp.linear_fc2.weight", "mlps.{%2}.down_proj.weight"),
    half_layer!("mlp.router.weight", "mlp.router.classifier.weight"),
    half_layer!("mlp.router.expert_bias", "mlp.router.e_score_correction_bias"),
    half_layer!(
        "mlp.experts.local_experts.{}.linear_fc1.weight",
        "mlp.experts.{}.gate_proj.weight",
        "mlp.experts.{}.up_proj.weight"
    )
    .fused(Fusion::GateUp),
    half_layer!("mlp.experts.local_experts.{}.linear_fc2.weight", "mlp.experts.{}.down_proj.weight"),
    half_layer!("mlp.experts.local_experts.{}.linear_fc1.weight", "mlp.experts.gate_up_proj").with_identities(),
    half_layer!("mlp.experts.local_experts.{}.linear_fc2.weight", "mlp.experts.down_proj").stacked(),
];
