//! Qwen 3 with experts in all layers or some; queries and keys are normalized per head.

#[cfg(test)]
mod tests;

use super::mixture::{self, norm_topk_prob};
use super::prelude::*;
use super::rows::LAYERS;
use super::{llama, qwen3};

pub(super) static FAMILY: Family = Family {
    model_type: "qwen3_moe",
    architecture: "Qwen3MoeForCausalLM",
    settings: SETTINGS,
    weights: &[qwen3::QK_NORMS, mixture::APART, mixture::STACKED, llama::WEIGHTS],
    ..Family::USUAL
};

/// Settings; absent ones have the values of `Qwen3MoeConfig`.
const SETTINGS: &[Setting] = &[
    Setting::Rows(SIZES),
    Setting::KeyValueHeads(4),
    HEAD_SIZE,
    positions(32_768),
    Setting::Always(|c| c.qk_layernorm = true),
    size_or("moe_intermediate_size", |c| &mut experts(c).ffn_hidden_size, 768),
    // Newer files call it as other families do; both names are written.
    size_or("num_local_experts", |c| &mut experts(c).num_experts, 128),
    size_from(
        "num_experts",
        |c| &mut experts(c).num_experts,
        |_, c| Ok(c.moe.as_ref().map_or(128, |moe| moe.num_experts)),
    ),
    size_or("num_experts_per_tok", |c| &mut experts(c).topk, 8),
    norm_topk_prob(false),
    SPARSE_LAYERS,
    Setting::Rows(LAYERS),
    Setting::Keys { read: read_window, write: write_window },
];

/// Layers that have experts.
pub(super) const SPARSE_LAYERS: Setting = Setting::Keys { read: read_layers, write: write_layers };

/// Every `decoder_sparse_step`-th layer has experts, but those that `mlp_only_layers` names.
fn read_layers(fields: &Fields, config: &mut DecoderConfig) -> Result<(), HfError> {
    let step = fields.size("decoder_sparse_step")?.unwrap_or(1);
    let dense = fields.layers("mlp_only_layers")?.unwrap_or_default();
    let has_experts = |layer: usize| (layer + 1).is_multiple_of(step) && !dense.contains(&layer);
    experts(config).layers = LayerPattern::from_list((0..config.num_layers).map(has_experts).collect());
    Ok(())
}

fn write_layers(config: &DecoderConfig, settings: &mut Map<String, Value>) {
    let dense: Vec<usize> = (0..config.num_layers).filter(|layer| config.moe_layer(*layer).is_none()).collect();
    settings.insert("decoder_sparse_step".into(), json!(1));
    settings.insert("mlp_only_layers".into(), json!(dense));
}

/// A window in all layers or none.
fn read_window(fields: &Fields, config: &mut DecoderConfig) -> Result<(), HfError> {
    let size = windows::switched_size(fields, Some(4096))?;
    windows::set(config, size, vec![size.is_some(); config.num_layers]);
    Ok(())
}

fn write_window(config: &DecoderConfig, settings: &mut Map<String, Value>) {
    settings.insert("use_sliding_window".into(), json!(config.window_size.is_some()));
    windows::write_of_all(config, settings);
}
