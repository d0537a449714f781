//! Solar Open: GLM-4.5's experts in every layer, behind Llama's attention.

#[cfg(test)]
mod tests;

use super::deepseek_v3::config::SHARED;
use super::llama;
use super::mixture::{self, SharedExperts, SigmoidRouter};
use super::prelude::*;

pub(super) static FAMILY: Family = Family {
    model_type: "solar_open",
    architecture: "SolarOpenForCausalLM",
    settings: SETTINGS,
    weights: &[mixture::SHARED, mixture::APART, mixture::STACKED, llama::WEIGHTS],
    aliases: &[("num_local_experts", "n_routed_experts")],
    ..Family::USUAL
};

/// Settings; absent ones have the values of `SolarOpenConfig`.
const SETTINGS: &[Setting] = &[
    Setting::Rows(SIZES_BESIDE_MLP),
    Setting::KeyValueHeads(8),
    head_size(128),
    positions(131_072),
    size_or("moe_intermediate_size", |c| &mut experts(c).ffn_hidden_size, 1280),
    // No layer has a block of this size.
    Setting::Always(|c| c.ffn_hidden_size = experts(c).ffn_hidden_size),
    size_or("n_routed_experts", |c| &mut experts(c).num_experts, 128),
    size_or("num_experts_per_tok", |c| &mut experts(c).topk, 8),
    Setting::Group(&SigmoidRouter::UNGROUPED),
    Setting::Group(&SharedExperts(SHARED, Some(1))),
    Setting::Rows(BLOCKS),
    Setting::Switch("attention_bias", |c| &mut c.qkv_bias, false),
    rms_norm_epsilon(1e-5),
    tied_embeddings(false),
    Setting::Group(&RopeForm { theta: 1_000_000.0, ..RopeForm::USUAL }),
    Setting::Only("first_k_dense_replace", || json!(0)),
    Setting::Only("use_qk_norm", || json!(false)),
];
