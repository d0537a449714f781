//! Names of streams, sinks and gates. All experts of a layer are in one tensor.

use crate::families::prelude::*;

pub(super) const OWN: &[WeightRule] = &[
    layer!("self_attention_hyper_connection.weight", "hc_pre.hc_attn_layer.hc_fn"),
    layer!("self_attention_hyper_connection.bias", "hc_pre.hc_attn_layer.hc_base"),
    layer!("self_attention_hyper_connection.scale", "hc_pre.hc_attn_layer.hc_scale"),
    layer!("mlp_hyper_connection.weight", "hc_pre.hc_mlp_layer.hc_fn"),
    layer!("mlp_hyper_connection.bias", "hc_pre.hc_mlp_layer.hc_base"),
    layer!("mlp_hyper_connection.scale", "hc_pre.hc_mlp_layer.hc_scale"),
    rule("decoder.final_hyper_connection.weight", &["model.hc_pre.hc_head.hc_head_fn"]),
    rule("decoder.final_hyper_connection.bias", &["model.hc_pre.hc_head.hc_head_base"]),
    rule("decoder.final_hyper_connection.scale", &["model.hc_pre.hc_head.hc_head_scale"]),
    layer!("self_attention.core_attention.softmax_offset", "self_attn.learnable_sink_param"),
    layer!("self_attention.linear_gate.weight", "self_attn.linear_gate.weight"),
    layer!("mlp.linear_fc1.weight", "mlp.linear_gate.weight", "mlp.up_proj.weight").fused(Fusion::GateUp),
    layer!(
        "mlp.shared_experts.linear_fc1.weight",
        "mlp.shared_experts.linear_gate.weight",
        "mlp.shared_experts.up_proj.weight"
    )
    .fused(Fusion::GateUp),
    layer!("mlp.experts.local_experts.{}.linear_fc1.weight", "mlp.experts.gate_up_proj"),
    layer!("mlp.experts.local_experts.{}.linear_fc2.weight", "mlp.experts.down_proj"),
];
