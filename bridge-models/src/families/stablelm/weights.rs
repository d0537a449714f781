//! Names of the norms of queries and keys, a module for each head.

use crate::families::prelude::*;

pub(super) const QK_NORMS: &[WeightRule] = &[
    layer!("self_attention.q_layernorm.weight", "self_attn.q_layernorm.norms.{head}.weight").fused(Fusion::EachHead),
    layer!("self_attention.k_layernorm.weight", "self_attn.k_layernorm.norms.{head}.weight").fused(Fusion::EachHead),
];
