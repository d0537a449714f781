//! Names of the parameters that Llama does not have.

use crate::huggingface::weight_map::{WeightRule, rule};

/// Norms of the outputs of blocks.
pub(crate) const NORMS: &[WeightRule] = &[
    rule(
        "decoder.layers.{}.post_self_attention_layernorm.weight",
        &["model.layers.{}.post_attention_layernorm.weight"],
    ),
    rule("decoder.layers.{}.post_mlp_layernorm.weight", &["model.layers.{}.post_feedforward_layernorm.weight"]),
];
