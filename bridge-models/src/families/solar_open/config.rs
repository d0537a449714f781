//! Settings of Solar Open; absent ones have the values of `SolarOpenConfig`.

use crate::families::deepseek_v3::config::SHARED;
use crate::families::mixture::{SharedExperts, SigmoidRouter};
use crate::families::prelude::*;

pub(super) const SETTINGS: &[Setting] = &[
    Setting::Rows(SIZES_BESIDE_MLP),
    Setting::KeyValueHeads(8),
    size_or("head_dim", |c| &mut c.kv_channels, |_, _| Ok(128)),
    size_or("max_position_embeddings", |c| &mut c.max_position_embeddings, |_, _| Ok(131_072)),
    size_or("moe_intermediate_size", |c| &mut experts(c).ffn_hidden_size, |_, _| Ok(1280)),
    // No layer has a block of this size.
    Setting::Always(|c| c.ffn_hidden_size = experts(c).ffn_hidden_size),
    size_or("n_routed_experts", |c| &mut experts(c).num_experts, |_, _| Ok(128)),
    size_or("num_experts_per_tok", |c| &mut experts(c).topk, |_, _| Ok(8)),
    Setting::Group(&SigmoidRouter::UNGROUPED),
    Setting::Group(&SharedExperts(SHARED, Some(1))),
    Setting::Rows(BLOCKS),
    Setting::Switch("attention_bias", |c| &mut c.qkv_bias, false),
    Setting::Number("rms_norm_eps", |c| &mut c.norm.epsilon, |_, _| Ok(1e-5)),
    Setting::Switch("tie_word_embeddings", |c| &mut c.share_embeddings_and_output_weights, false),
    Setting::Group(&RopeForm { theta: 1_000_000.0, ..RopeForm::USUAL }),
    Setting::Only("first_k_dense_replace", || json!(0)),
    Setting::Only("use_qk_norm", || json!(false)),
];
