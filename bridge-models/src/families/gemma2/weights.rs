//! Names of the norms of Gemma's layers.

use crate::huggingface::weight_map::{WeightRule, rule};

pub(crate) const NORMS: &[WeightRule] = &[
    rule(
        "decoder.layers.{}.post_self_attention_layernorm.weight",
        &["model.layers.{}.post_attention_layernorm.weight"],
    ),
    rule("decoder.layers.{}.pre_mlp_layernorm.weight", &["model.layers.{}.pre_feedforward_layernorm.weight"]),
    rule("decoder.layers.{}.post_mlp_layernorm.weight", &["model.layers.{}.post_feedforward_layernorm.weight"]),
];
