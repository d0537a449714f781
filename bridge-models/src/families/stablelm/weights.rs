//! Names of the norms of queries and keys, a module for each head.

use crate::huggingface::weight_map::{Fusion, WeightRule, rule};

pub(super) const QK_NORMS: &[WeightRule] = &[
    rule(
        "decoder.layers.{}.self_attention.q_layernorm.weight",
        &["model.layers.{}.self_attn.q_layernorm.norms.{head}.weight"],
    )
    .fused(Fusion::EachHead),
    rule(
        "decoder.layers.{}.self_attention.k_layernorm.weight",
        &["model.layers.{}.self_attn.k_layernorm.norms.{head}.weight"],
    )
    .fused(Fusion::EachHead),
];
