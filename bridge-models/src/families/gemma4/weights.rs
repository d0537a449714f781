//! Names of the parameters that Gemma 3 does not have.

use crate::huggingface::weight_map::{Fusion, WeightRule, rule};

pub(crate) const WEIGHTS: &[WeightRule] = &[
    rule("embedding.per_layer_embeddings.weight", &["model.embed_tokens_per_layer.weight"]),
    rule("embedding.per_layer_projection.weight", &["model.per_layer_model_projection.weight"]),
    rule("embedding.per_layer_layernorm.weight", &["model.per_layer_projection_norm.weight"]),
    rule("decoder.layers.{}.per_layer_input_gate.weight", &["model.layers.{}.per_layer_input_gate.weight"]),
    rule("decoder.layers.{}.per_layer_projection.weight", &["model.layers.{}.per_layer_projection.weight"]),
    rule("decoder.layers.{}.post_per_layer_input_norm.weight", &["model.layers.{}.post_per_layer_input_norm.weight"]),
    rule("decoder.layers.{}.layer_scalar", &["model.layers.{}.layer_scalar"]),
    rule("decoder.layers.{}.self_attention.linear_q_proj.weight", &["model.layers.{}.self_attn.q_proj.weight"]),
    rule("decoder.layers.{}.self_attention.linear_q_proj.bias", &["model.layers.{}.self_attn.q_proj.bias"]),
    rule("decoder.layers.{}.self_attention.linear_k_proj.weight", &["model.layers.{}.self_attn.k_proj.weight"]),
    rule("decoder.layers.{}.self_attention.linear_k_proj.bias", &["model.layers.{}.self_attn.k_proj.bias"]),
    rule("decoder.layers.{}.mlp.dense_layernorm.weight", &["model.layers.{}.pre_feedforward_layernorm.weight"]),
    rule(
        "decoder.layers.{}.mlp.dense.linear_fc1.weight",
        &["model.layers.{}.mlp.gate_proj.weight", "model.layers.{}.mlp.up_proj.weight"],
    )
    .fused(Fusion::GateUp),
    rule("decoder.layers.{}.mlp.dense.linear_fc2.weight", &["model.layers.{}.mlp.down_proj.weight"]),
    rule("decoder.layers.{}.mlp.post_dense_layernorm.weight", &["model.layers.{}.post_feedforward_layernorm_1.weight"]),
    rule("decoder.layers.{}.mlp.experts_layernorm.weight", &["model.layers.{}.pre_feedforward_layernorm_2.weight"]),
    rule(
        "decoder.layers.{}.mlp.post_experts_layernorm.weight",
        &["model.layers.{}.post_feedforward_layernorm_2.weight"],
    ),
    rule("decoder.layers.{}.mlp.router.weight", &["model.layers.{}.router.proj.weight"]),
    rule("decoder.layers.{}.mlp.router.input_scale", &["model.layers.{}.router.scale"]),
    rule("decoder.layers.{}.mlp.router.expert_scale", &["model.layers.{}.router.per_expert_scale"]),
    rule("decoder.layers.{}.mlp.experts.local_experts.{}.linear_fc1.weight", &["model.layers.{}.experts.gate_up_proj"])
        .stacked(),
    rule("decoder.layers.{}.mlp.experts.local_experts.{}.linear_fc2.weight", &["model.layers.{}.experts.down_proj"])
        .stacked(),
];
