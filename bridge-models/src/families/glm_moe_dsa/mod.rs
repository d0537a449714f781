//! GLM-5: DeepSeek-V3.2, some of whose layers share the keys that a layer before them chooses.

#[cfg(test)]
mod tests;

use super::deepseek_v3::config::LatentSizes;
use super::deepseek_v32::{INDEXER, IndexerTypes, QUERY_LATENTS, indexer};
use super::glm4_moe_lite::LAYERS;
use super::mixture::{FIRST_DENSE, FirstDense, MlpLayerTypes, SigmoidRouter};
use super::prelude::*;
use super::{deepseek_v3, deepseek_v32};

pub(super) static FAMILY: Family = Family {
    model_type: "glm_moe_dsa",
    architecture: "GlmMoeDsaForCausalLM",
    settings: SETTINGS,
    weights: deepseek_v32::WEIGHTS,
    aliases: deepseek_v3::ALIASES,
    ..Family::USUAL
};

/// Settings; absent ones have the values of `GlmMoeDsaConfig`.
const SETTINGS: &[Setting] = &[
    Setting::Rows(SIZES),
    positions(202_752),
    Setting::Group(&LatentSizes { query: Some(2048), key_value: 512, rotated: 64, plain: 192, value: Some(256) }),
    QUERY_LATENTS,
    size_or("moe_intermediate_size", |c| &mut experts(c).ffn_hidden_size, 2048),
    size_or("n_routed_experts", |c| &mut experts(c).num_experts, 256),
    size_or("num_experts_per_tok", |c| &mut experts(c).topk, 8),
    Setting::Group(&SigmoidRouter { factor: 2.5, ..SigmoidRouter::UNGROUPED }),
    Setting::Group(&MlpLayerTypes(Some(FirstDense(FIRST_DENSE, 3)))),
    Setting::Rows(LAYERS),
    Setting::Rows(INDEXER),
    size_or("index_n_heads", |c| &mut indexer(c).heads, 32),
    Setting::Always(|c| indexer(c).interleaved = true),
    Setting::Group(&IndexerTypes(2, 1)),
    Setting::Only("rope_interleave", || json!(true)),
    Setting::Unused(&["layer_types", "mlp_bias", "head_dim"]),
];
