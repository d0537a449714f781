//! Qwen 1.5 and 2 with experts in all layers or some, and one gated expert that all tokens go
//! through.

#[cfg(test)]
mod tests;

use super::llama;
use super::mixture::{self, norm_topk_prob};
use super::prelude::*;
use super::qwen3_moe::SPARSE_LAYERS;

pub(super) static FAMILY: Family = Family {
    model_type: "qwen2_moe",
    architecture: "Qwen2MoeForCausalLM",
    settings: SETTINGS,
    weights: &[SHARED, mixture::APART, mixture::STACKED, llama::WEIGHTS],
    ..Family::USUAL
};

/// Settings; absent ones have the values of `Qwen2MoeConfig`.
const SETTINGS: &[Setting] = &[
    Setting::Rows(SIZES),
    Setting::KeyValueHeads(16),
    HEAD_SIZE,
    positions(32_768),
    size_or("moe_intermediate_size", |c| &mut experts(c).ffn_hidden_size, 1408),
    size_or("num_experts", |c| &mut experts(c).num_experts, 60),
    size_or("num_experts_per_tok", |c| &mut experts(c).topk, 4),
    Setting::Keys { read: |fields, c| read_shared_expert(fields, c, 5632), write: write_shared_expert },
    norm_topk_prob(false),
    SPARSE_LAYERS,
    Setting::Rows(BLOCKS),
    Setting::Switch("qkv_bias", |c| &mut c.qkv_bias, true),
    rms_norm_epsilon(1e-6),
    tied_embeddings(false),
    ROPE,
    Setting::Keys { read: read_window, write: windows::write_switched },
];

const SHARED_SIZE: &str = "shared_expert_intermediate_size";

/// Reads the width of the expert that all tokens go through, which has a gate.
pub(super) fn read_shared_expert(fields: &Fields, config: &mut DecoderConfig, absent: usize) -> Result<(), HfError> {
    let size = fields.size(SHARED_SIZE)?.unwrap_or(absent);
    let moe = experts(config);
    (moe.shared_expert_intermediate_size, moe.shared_gate) = (Some(size), true);
    Ok(())
}

pub(super) fn write_shared_expert(config: &DecoderConfig, settings: &mut Map<String, Value>) {
    let size = config.moe.as_ref().and_then(|moe| moe.shared_expert_intermediate_size);
    settings.insert(SHARED_SIZE.into(), json!(size));
}

/// A window in the layers that `layer_types` names, or in every other layer, from the first on,
/// below number `max_window_layers`.
fn read_window(fields: &Fields, config: &mut DecoderConfig) -> Result<(), HfError> {
    let size = windows::switched_size(fields, Some(4096))?;
    let end = fields.count("max_window_layers")?.unwrap_or(28);
    let usual = |layer: usize| size.is_some() && layer.is_multiple_of(2) && layer < end;
    let layers = windows::layer_types(fields, config.num_layers)?;
    let layers = layers.unwrap_or_else(|| (0..config.num_layers).map(usual).collect());
    windows::set_switched(fields, config, size, layers)
}

/// Names of the expert that all tokens go through, and of its gate.
pub(super) const SHARED: &[WeightRule] = &[
    layer!("mlp.shared_experts.gate_weight", "mlp.shared_expert_gate.weight"),
    layer!(
        "mlp.shared_experts.linear_fc1.weight",
        "mlp.shared_expert.gate_proj.weight",
        "mlp.shared_expert.up_proj.weight"
    )
    .fused(Fusion::GateUp),
    layer!("mlp.shared_experts.linear_fc2.weight", "mlp.shared_expert.down_proj.weight"),
];
