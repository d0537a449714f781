//! Names of the parameters that Llama does not have. One matrix has the rows of the gate, then
//! those of the other half, as ours.

use crate::huggingface::weight_map::{WeightRule, rule};

pub(super) const OWN: &[WeightRule] = &[
    rule(
        "decoder.layers.{}.post_self_attention_layernorm.weight",
        &["model.layers.{}.post_self_attn_layernorm.weight"],
    ),
    rule("decoder.layers.{}.post_mlp_layernorm.weight", &["model.layers.{}.post_mlp_layernorm.weight"]),
    rule("decoder.layers.{}.mlp.linear_fc1.weight", &["model.layers.{}.mlp.gate_up_proj.weight"]),
];
