//! Names of the parameters that Llama does not have.

use crate::huggingface::weight_map::{WeightRule, rule};

pub(crate) const QK_NORMS: &[WeightRule] = &[
    rule("decoder.layers.{}.self_attention.q_layernorm.weight", &["model.layers.{}.self_attn.q_norm.weight"]),
    rule("decoder.layers.{}.self_attention.k_layernorm.weight", &["model.layers.{}.self_attn.k_norm.weight"]),
];
