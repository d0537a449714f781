//! GLM-4.7-Flash: DeepSeek-V3's latent attention, router and layers of multi-token prediction, with
//! dense layers that the file names.

#[cfg(test)]
mod tests;

use super::deepseek_v3;
use super::deepseek_v3::config::{LatentSizes, PREDICTED_LAYERS, SHARED, read_rope, write_rope};
use super::mixture::{MlpLayerTypes, SharedExperts, SigmoidRouter};
use super::prelude::*;

pub(super) static FAMILY: Family = Family {
    model_type: "glm4_moe_lite",
    architecture: "Glm4MoeLiteForCausalLM",
    settings: SETTINGS,
    weights: deepseek_v3::WEIGHTS,
    aliases: &[
        ("num_local_experts", "n_routed_experts"),
        ("head_dim", "qk_rope_head_dim"),
        ("num_mtp_layers", "num_nextn_predict_layers"),
    ],
    ..Family::USUAL
};

/// Settings; absent ones have the values of `Glm4MoeLiteConfig`.
const SETTINGS: &[Setting] = &[
    Setting::Rows(SIZES),
    positions(202_752),
    Setting::Group(&LatentSizes { query: Some(768), key_value: 512, rotated: 64, plain: 192, value: Some(256) }),
    size_or("moe_intermediate_size", |c| &mut experts(c).ffn_hidden_size, 1536),
    size_or("n_routed_experts", |c| &mut experts(c).num_experts, 64),
    size_or("num_experts_per_tok", |c| &mut experts(c).topk, 4),
    Setting::Group(&SigmoidRouter { factor: 1.8, ..SigmoidRouter::UNGROUPED }),
    Setting::Group(&MlpLayerTypes(None)),
    Setting::Rows(LAYERS),
];

/// Shared experts, layers of multi-token prediction and rotation.
pub(super) const LAYERS: &[Setting] = &[
    Setting::Only("scoring_func", || json!("sigmoid")),
    Setting::Only("topk_method", || json!("noaux_tc")),
    Setting::Group(&SharedExperts(SHARED, Some(1))),
    PREDICTED_LAYERS,
    Setting::Rows(BLOCKS),
    Setting::Rows(ATTENTION_BIAS),
    rms_norm_epsilon(1e-5),
    tied_embeddings(false),
    Setting::Keys { read: read_rope, write: write_rope },
    Setting::Unused(&["qk_head_dim"]),
];
