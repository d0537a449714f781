//! Names of the parameters that Llama does not have.

use crate::huggingface::weight_map::{WeightRule, rule};

pub(super) const OWN: &[WeightRule] = &[
    rule(
        "decoder.layers.{}.post_self_attention_layernorm.weight",
        &["model.layers.{}.post_attention_layernorm.weight"],
    ),
    rule("decoder.layers.{}.pre_mlp_layernorm.weight", &["model.layers.{}.pre_mlp_layernorm.weight"]),
    rule("decoder.layers.{}.post_mlp_layernorm.weight", &["model.layers.{}.post_mlp_layernorm.weight"]),
    rule("decoder.layers.{}.self_attention.linear_gate.weight", &["model.layers.{}.self_attn.gate_proj.weight"]),
    ROUTER,
    ROUTER.stacked(),
    rule("decoder.layers.{}.mlp.router.expert_bias", &["model.layers.{}.mlp.expert_bias"]),
];

const ROUTER: WeightRule = rule("decoder.layers.{}.mlp.router.weight", &["model.layers.{}.mlp.router.gate.weight"]);
