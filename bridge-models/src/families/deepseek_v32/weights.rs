//! Names of the parameters of indexers.

use crate::families::prelude::*;

pub(crate) const INDEXER: &[WeightRule] = &[
    layer!("self_attention.core_attention.indexer.linear_wq_b.weight", "self_attn.indexer.wq_b.weight"),
    layer!("self_attention.core_attention.indexer.linear_wk.weight", "self_attn.indexer.wk.weight"),
    layer!("self_attention.core_attention.indexer.k_norm.weight", "self_attn.indexer.k_norm.weight"),
    layer!("self_attention.core_attention.indexer.k_norm.bias", "self_attn.indexer.k_norm.bias"),
    layer!("self_attention.core_attention.indexer.linear_weights_proj.weight", "self_attn.indexer.weights_proj.weight"),
];
