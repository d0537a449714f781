//! Names of the norms of queries and keys.

use crate::families::prelude::*;

pub(crate) const QK_NORMS: &[WeightRule] = &[
    layer!("self_attention.q_layernorm.weight", "self_attn.query_layernorm.weight"),
    layer!("self_attention.k_layernorm.weight", "self_attn.key_layernorm.weight"),
];
