//! Names of the parameters that Llama does not have.

use crate::families::prelude::*;

pub(super) const OWN: &[WeightRule] = &[
    layer!("post_self_attention_layernorm.weight", "post_attention_layernorm.weight"),
    layer!("pre_mlp_layernorm.weight", "pre_mlp_layernorm.weight"),
    layer!("post_mlp_layernorm.weight", "post_mlp_layernorm.weight"),
    layer!("self_attention.linear_gate.weight", "self_attn.gate_proj.weight"),
    ROUTER,
    ROUTER.stacked(),
    layer!("mlp.router.expert_bias", "mlp.expert_bias"),
];

const ROUTER: WeightRule = layer!("mlp.router.weight", "mlp.router.gate.weight");
