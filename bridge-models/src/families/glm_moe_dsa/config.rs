//! Settings of GLM-5; absent ones have the values of `GlmMoeDsaConfig`.

use crate::families::deepseek_v3::config::LatentSizes;
use crate::families::deepseek_v32::config::{INDEXER, IndexerTypes, QUERY_LATENTS, indexer};
use crate::families::glm4_moe_lite::config::LAYERS;
use crate::families::mixture::{FIRST_DENSE, FirstDense, MlpLayerTypes, SigmoidRouter};
use crate::families::prelude::*;

pub(super) const SETTINGS: &[Setting] = &[
    Setting::Rows(SIZES),
    size_or("max_position_embeddings", |c| &mut c.max_position_embeddings, |_, _| Ok(202_752)),
    Setting::Group(&LatentSizes { query: Some(2048), key_value: 512, rotated: 64, plain: 192, value: Some(256) }),
    QUERY_LATENTS,
    size_or("moe_intermediate_size", |c| &mut experts(c).ffn_hidden_size, |_, _| Ok(2048)),
    size_or("n_routed_experts", |c| &mut experts(c).num_experts, |_, _| Ok(256)),
    size_or("num_experts_per_tok", |c| &mut experts(c).topk, |_, _| Ok(8)),
    Setting::Group(&SigmoidRouter { factor: 2.5, ..SigmoidRouter::UNGROUPED }),
    Setting::Group(&MlpLayerTypes(Some(FirstDense(FIRST_DENSE, 3)))),
    Setting::Rows(LAYERS),
    Setting::Rows(INDEXER),
    size_or("index_n_heads", |c| &mut indexer(c).heads, |_, _| Ok(32)),
    Setting::Always(|c| indexer(c).interleaved = true),
    Setting::Group(&IndexerTypes(2, 1)),
    Setting::Only("rope_interleave", || json!(true)),
    Setting::Unused(&["layer_types", "mlp_bias", "head_dim"]),
];
