//! Names of the parameters that Gemma 3 does not have.

use crate::families::prelude::*;

pub(crate) const WEIGHTS: &[WeightRule] = &[
    rule("embedding.per_layer_embeddings.weight", &["model.embed_tokens_per_layer.weight"]),
    rule("embedding.per_layer_projection.weight", &["model.per_layer_model_projection.weight"]),
    rule("embedding.per_layer_layernorm.weight", &["model.per_layer_projection_norm.weight"]),
    layer!("per_layer_input_gate.weight", "per_layer_input_gate.weight"),
    layer!("per_layer_projection.weight", "per_layer_projection.weight"),
    layer!("post_per_layer_input_norm.weight", "post_per_layer_input_norm.weight"),
    layer!("layer_scalar", "layer_scalar"),
    layer!("self_attention.linear_q_proj.weight", "self_attn.q_proj.weight"),
    layer!("self_attention.linear_q_proj.bias", "self_attn.q_proj.bias"),
    layer!("self_attention.linear_k_proj.weight", "self_attn.k_proj.weight"),
    layer!("self_attention.linear_k_proj.bias", "self_attn.k_proj.bias"),
    layer!("mlp.dense_layernorm.weight", "pre_feedforward_layernorm.weight"),
    layer!("mlp.dense.linear_fc1.weight", "mlp.gate_proj.weight", "mlp.up_proj.weight").fused(Fusion::GateUp),
    layer!("mlp.dense.linear_fc2.weight", "mlp.down_proj.weight"),
    layer!("mlp.post_dense_layernorm.weight", "post_feedforward_layernorm_1.weight"),
    layer!("mlp.experts_layernorm.weight", "pre_feedforward_layernorm_2.weight"),
    layer!("mlp.post_experts_layernorm.weight", "post_feedforward_layernorm_2.weight"),
    layer!("mlp.router.weight", "router.proj.weight"),
    layer!("mlp.router.input_scale", "router.scale"),
    layer!("mlp.router.expert_scale", "router.per_expert_scale"),
    layer!("mlp.experts.local_experts.{}.linear_fc1.weight", "experts.gate_up_proj").stacked(),
    layer!("mlp.experts.local_experts.{}.linear_fc2.weight", "experts.down_proj").stacked(),
];
