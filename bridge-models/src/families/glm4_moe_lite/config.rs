//! Settings of GLM-4.7-Flash; absent ones have the values of `Glm4MoeLiteConfig`.

use crate::families::deepseek_v3::config::{LatentSizes, PREDICTED_LAYERS, SHARED, read_rope, write_rope};
use crate::families::mixture::{MlpLayerTypes, SharedExperts, SigmoidRouter};
use crate::families::prelude::*;

pub(super) const SETTINGS: &[Setting] = &[
    Setting::Rows(SIZES),
    size_or("max_position_embeddings", |c| &mut c.max_position_embeddings, |_, _| Ok(202_752)),
    Setting::Group(&LatentSizes { query: Some(768), key_value: 512, rotated: 64, plain: 192, value: Some(256) }),
    size_or("moe_intermediate_size", |c| &mut experts(c).ffn_hidden_size, |_, _| Ok(1536)),
    size_or("n_routed_experts", |c| &mut experts(c).num_experts, |_, _| Ok(64)),
    size_or("num_experts_per_tok", |c| &mut experts(c).topk, |_, _| Ok(4)),
    Setting::Group(&SigmoidRouter { factor: 1.8, ..SigmoidRouter::UNGROUPED }),
    Setting::Group(&MlpLayerTypes(None)),
    Setting::Rows(LAYERS),
];

/// Shared experts, layers of multi-token prediction and rotation.
pub(crate) const LAYERS: &[Setting] = &[
    Setting::Only("scoring_func", || json!("sigmoid")),
    Setting::Only("topk_method", || json!("noaux_tc")),
    Setting::Group(&SharedExperts(SHARED, Some(1))),
    PREDICTED_LAYERS,
    Setting::Rows(BLOCKS),
    Setting::Rows(ATTENTION_BIAS),
    Setting::Number("rms_norm_eps", |c| &mut c.norm.epsilon, |_, _| Ok(1e-5)),
    Setting::Switch("tie_word_embeddings", |c| &mut c.share_embeddings_and_output_weights, false),
    Setting::Keys { read: read_rope, write: write_rope },
    Setting::Unused(&["qk_head_dim"]),
];
