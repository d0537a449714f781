//! Names of the norms of queries and keys, with a row of weights for each head.

use crate::huggingface::weight_map::{Fusion, WeightRule, rule};

pub(super) const QK_NORMS: &[WeightRule] = &[
    rule("decoder.layers.{}.self_attention.q_layernorm.weight", &["model.layers.{}.self_attn.q_norm.weight"])
        .fused(Fusion::HeadRows),
    rule("decoder.layers.{}.self_attention.k_layernorm.weight", &["model.layers.{}.self_attn.k_norm.weight"])
        .fused(Fusion::HeadRows),
];
