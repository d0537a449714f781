//! dots.llm1: attention with norms of queries and keys per head, a few dense layers, then experts
//! behind a sigmoid router, and experts that all tokens go through. Upper layers may have a sliding
//! window.

#[cfg(test)]
mod tests;

use super::deepseek_v3::config::SHARED;
use super::mixture::{self, FIRST_DENSE, FirstDense, SharedExperts, SigmoidRouter};
use super::prelude::*;
use super::{llama, qwen3};

pub(super) static FAMILY: Family = Family {
    model_type: "dots1",
    architecture: "Dots1ForCausalLM",
    settings: SETTINGS,
    weights: &[qwen3::QK_NORMS, mixture::SHARED, mixture::APART, mixture::STACKED, llama::WEIGHTS],
    aliases: &[("num_local_experts", "n_routed_experts")],
    ..Family::USUAL
};

/// Settings; absent ones have the values of `Dots1Config`.
const SETTINGS: &[Setting] = &[
    Setting::Rows(SIZES),
    Setting::KeyValueHeads(32),
    HEAD_SIZE,
    positions(2048),
    Setting::Always(|c| c.qk_layernorm = true),
    size_or("moe_intermediate_size", |c| &mut experts(c).ffn_hidden_size, 1408),
    size("n_routed_experts", |c| &mut experts(c).num_experts),
    size("num_experts_per_tok", |c| &mut experts(c).topk),
    Setting::Group(&SigmoidRouter { normalizes: false, ..SigmoidRouter::UNGROUPED }),
    Setting::Group(&SharedExperts(SHARED, None)),
    Setting::Group(&FirstDense(FIRST_DENSE, 0)),
    Setting::Rows(BLOCKS),
    Setting::Rows(ATTENTION_BIAS),
    rms_norm_epsilon(1e-6),
    tied_embeddings(false),
    ROPE,
    Setting::Keys { read: read_window, write: write_window },
];

/// A window in upper layers unless `sliding_window` is null.
fn read_window(fields: &Fields, config: &mut DecoderConfig) -> Result<(), HfError> {
    let size = if fields.has("sliding_window") { fields.size("sliding_window")? } else { Some(4096) };
    windows::read_upper_layers(fields, config, size, 62)
}

fn write_window(config: &DecoderConfig, settings: &mut Map<String, Value>) {
    windows::write_of_all(config, settings);
    settings.insert("layer_types".into(), windows::type_names(&windows::windowed_layers(config)));
}
