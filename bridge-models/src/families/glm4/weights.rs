//! Names of the norms that GLM does not have.

use crate::huggingface::weight_map::{WeightRule, rule};

pub(super) const NORMS: &[WeightRule] = &[
    rule(
        "decoder.layers.{}.post_self_attention_layernorm.weight",
        &["model.layers.{}.post_self_attn_layernorm.weight"],
    ),
    rule("decoder.layers.{}.post_mlp_layernorm.weight", &["model.layers.{}.post_mlp_layernorm.weight"]),
];
