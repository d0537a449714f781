//! Names of the norms of queries and keys, with a row of weights for each head.

use crate::families::prelude::*;

pub(super) const QK_NORMS: &[WeightRule] = &[
    layer!("self_attention.q_layernorm.weight", "self_attn.q_norm.weight").fused(Fusion::HeadRows),
    layer!("self_attention.k_layernorm.weight", "self_attn.k_norm.weight").fused(Fusion::HeadRows),
];
