//! Settings of Qwen 2 with experts; absent ones have the values of `Qwen2MoeConfig`.

use crate::families::mixture::NORM_TOPK_PROB;
use crate::families::prelude::*;
use crate::families::qwen3_moe::config::SPARSE_LAYERS;

pub(super) const SETTINGS: &[Setting] = &[
    Setting::Rows(SIZES),
    Setting::KeyValueHeads(16),
    HEAD_SIZE,
    size_or("max_position_embeddings", |c| &mut c.max_position_embeddings, |_, _| Ok(32_768)),
    size_or("moe_intermediate_size", |c| &mut experts(c).ffn_hidden_size, |_, _| Ok(1408)),
    size_or("num_experts", |c| &mut experts(c).num_experts, |_, _| Ok(60)),
    size_or("num_experts_per_tok", |c| &mut experts(c).topk, |_, _| Ok(4)),
    Setting::Keys { read: |fields, c| read_shared_expert(fields, c, 5632), write: write_shared_expert },
    NORM_TOPK_PROB,
    SPARSE_LAYERS,
    Setting::Rows(BLOCKS),
    Setting::Switch("qkv_bias", |c| &mut c.qkv_bias, true),
    Setting::Number("rms_norm_eps", |c| &mut c.norm.epsilon, |_, _| Ok(1e-6)),
    Setting::Switch("tie_word_embeddings", |c| &mut c.share_embeddings_and_output_weights, false),
    ROPE,
    Setting::Keys { read: read_window, write: windows::write_switched },
];

const SHARED_SIZE: &str = "shared_expert_intermediate_size";

/// Reads the width of the expert that all tokens go through, which has a gate.
pub(crate) fn read_shared_expert(fields: &Fields, config: &mut DecoderConfig, absent: usize) -> Result<(), HfError> {
    let size = fields.size(SHARED_SIZE)?.unwrap_or(absent);
    let moe = experts(config);
    (moe.shared_expert_intermediate_size, moe.shared_gate) = (Some(size), true);
    Ok(())
}

pub(crate) fn write_shared_expert(config: &DecoderConfig, settings: &mut Map<String, Value>) {
    let size = config.moe.as_ref().and_then(|moe| moe.shared_expert_intermediate_size);
    settings.insert(SHARED_SIZE.into(), json!(size));
}

/// A window in the layers that `layer_types` names, or in every other layer, from the first on,
/// below number `max_window_layers`.
fn read_window(fields: &Fields, config: &mut DecoderConfig) -> Result<(), HfError> {
    let size = windows::switched_size(fields, Some(4096))?;
    let end = fields.get("max_window_layers").map_or(Some(28), Value::as_u64);
    let error = || fields.error("max_window_layers", "something else", "an integer of at least 0");
    let end = end.ok_or_else(error)?;
    let usual = |layer: usize| size.is_some() && layer.is_multiple_of(2) && (layer as u64) < end;
    let layers = windows::layer_types(fields, config.num_layers)?;
    let layers = layers.unwrap_or_else(|| (0..config.num_layers).map(usual).collect());
    windows::set_switched(fields, config, size, layers)
}
