//! Settings of DeepSeek-V3.2; absent ones have the values of `DeepseekV32Config`.

use crate::decoder::IndexerConfig;
use crate::families::deepseek_v3::config::ROWS;
use crate::families::mixture::{FIRST_DENSE, FirstDense, MlpLayerTypes};
use crate::families::prelude::*;

pub(super) const SETTINGS: &[Setting] = &[
    size_or("max_position_embeddings", |c| &mut c.max_position_embeddings, |_, _| Ok(163_840)),
    Setting::Rows(ROWS),
    QUERY_LATENTS,
    Setting::Group(&MlpLayerTypes(Some(FirstDense(FIRST_DENSE, 3)))),
    Setting::Rows(INDEXER),
    size_or("index_n_heads", |c| &mut indexer(c).heads, |_, _| Ok(64)),
    Setting::Only("rope_interleave", || json!(true)),
    Setting::Unused(&["layer_types", "mlp_bias"]),
];

/// Requirement that queries come from latent vectors.
pub(crate) const QUERY_LATENTS: Setting = Setting::Rule(|fields, c| {
    let has_latents = c.latent.as_ref().is_some_and(|latent| latent.q_lora_rank.is_some());
    fields.require(has_latents, "q_lora_rank", "null", "an integer of at least 1")
});

/// Keys of a query, and the size of the heads that choose them.
pub(crate) const INDEXER: &[Setting] = &[
    size_or("index_topk", |c| &mut indexer(c).topk, |_, _| Ok(2048)),
    size_or("index_head_dim", |c| &mut indexer(c).head_size, |_, _| Ok(128)),
];

/// The indexer that every model of the family has.
pub(crate) fn indexer(config: &mut DecoderConfig) -> &mut IndexerConfig {
    config.indexer.get_or_insert_with(IndexerConfig::neutral)
}
