//! Names of the norms of queries and keys.

use crate::huggingface::weight_map::{WeightRule, rule};

pub(crate) const QK_NORMS: &[WeightRule] = &[
    rule("decoder.layers.{}.self_attention.q_layernorm.weight", &["model.layers.{}.self_attn.query_layernorm.weight"]),
    rule("decoder.layers.{}.self_attention.k_layernorm.weight", &["model.layers.{}.self_attn.key_layernorm.weight"]),
];
