//! Names of the parameters of indexers.

use crate::huggingface::weight_map::{WeightRule, rule};

pub(crate) const INDEXER: &[WeightRule] = &[
    rule(
        "decoder.layers.{}.self_attention.core_attention.indexer.linear_wq_b.weight",
        &["model.layers.{}.self_attn.indexer.wq_b.weight"],
    ),
    rule(
        "decoder.layers.{}.self_attention.core_attention.indexer.linear_wk.weight",
        &["model.layers.{}.self_attn.indexer.wk.weight"],
    ),
    rule(
        "decoder.layers.{}.self_attention.core_attention.indexer.k_norm.weight",
        &["model.layers.{}.self_attn.indexer.k_norm.weight"],
    ),
    rule(
        "decoder.layers.{}.self_attention.core_attention.indexer.k_norm.bias",
        &["model.layers.{}.self_attn.indexer.k_norm.bias"],
    ),
    rule(
        "decoder.layers.{}.self_attention.core_attention.indexer.linear_weights_proj.weight",
        &["model.layers.{}.self_attn.indexer.weights_proj.weight"],
    ),
];
