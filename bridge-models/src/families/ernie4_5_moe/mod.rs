//! ERNIE 4.5 with experts: shared and routed ones in some layers, chosen by probabilities with a
//! bias, and heads that are rotated in neighbouring pairs.

#[cfg(test)]
mod tests;

use super::ernie4_5::POSITIONS;
use super::prelude::*;
use super::{llama, mixture, phi};

pub(super) static FAMILY: Family = Family {
    model_type: "ernie4_5_moe",
    architecture: "Ernie4_5_MoeForCausalLM",
    settings: SETTINGS,
    weights: &[OWN, mixture::SHARED, mixture::APART, mixture::STACKED, phi::OUTPUT_BIAS, llama::WEIGHTS],
    module_names: &[("mlp.moe_statics.", "mlp.gate.moe_statics.")],
    dropped: &["model.mtp_", "mtp."],
    aliases: &[("num_experts", "moe_num_experts"), ("num_experts_per_tok", "moe_k")],
    ..Family::USUAL
};

/// Settings; absent ones have the values of `Ernie4_5_MoeConfig`.
const SETTINGS: &[Setting] = &[
    Setting::Rows(SIZES),
    Setting::KeyValueHeads(4),
    HEAD_SIZE,
    positions(131_072),
    Setting::Rows(BLOCKS),
    // Experts and router have no biases.
    Setting::Switch("use_bias", |c| &mut c.qkv_bias, false),
    Setting::Always(|c| (c.proj_bias, c.mlp_bias, c.output_bias) = (c.qkv_bias, c.qkv_bias, c.qkv_bias)),
    Setting::Always(|c| {
        let moe = experts(c);
        (moe.expert_bias, moe.router_precision) = (true, Some(RouterDType::Fp32));
    }),
    size_or("moe_intermediate_size", |c| &mut experts(c).ffn_hidden_size, 1536),
    size_or("moe_num_experts", |c| &mut experts(c).num_experts, 64),
    size_or("moe_k", |c| &mut experts(c).topk, 6),
    Setting::Keys { read: read_shared, write: write_shared },
    Setting::Keys { read: read_layers, write: write_layers },
    // A lower bound of the sum of a token's probabilities, which these never reach.
    Setting::Only("moe_norm_min", || json!(1e-12)),
    rms_norm_epsilon(1e-5),
    tied_embeddings(true),
    POSITIONS,
];

/// An integer of at least `least`.
fn integer(fields: &Fields, key: &str, least: i64, absent: i64) -> Result<i64, HfError> {
    let Some(value) = fields.get(key) else { return Ok(absent) };
    let found = value.as_i64().filter(|number| *number >= least);
    found.ok_or_else(|| fields.error(key, &value.to_string(), &format!("an integer of at least {least}")))
}

const SHARED: &str = "moe_num_shared_experts";

/// Shared experts are one block, as wide as all of them.
fn read_shared(fields: &Fields, config: &mut DecoderConfig) -> Result<(), HfError> {
    let count = integer(fields, SHARED, 0, 2)?;
    let moe = experts(config);
    let width = usize::try_from(count).ok().and_then(|count| count.checked_mul(moe.ffn_hidden_size));
    let width = width.ok_or_else(|| fields.error(SHARED, &count.to_string(), "a smaller number"))?;
    moe.shared_expert_intermediate_size = Some(width).filter(|width| *width > 0);
    Ok(())
}

fn write_shared(config: &DecoderConfig, settings: &mut Map<String, Value>) {
    let Some(moe) = &config.moe else { return };
    let width = moe.shared_expert_intermediate_size.unwrap_or(0);
    settings.insert(SHARED.into(), json!(width / moe.ffn_hidden_size.max(1)));
}

/// Keys of the first layer with experts, the last, and the distance between two.
const LAYERS: [&str; 3] = ["moe_layer_start_index", "moe_layer_end_index", "moe_layer_interval"];

fn read_layers(fields: &Fields, config: &mut DecoderConfig) -> Result<(), HfError> {
    let start = integer(fields, LAYERS[0], 0, 1)?;
    let end = integer(fields, LAYERS[1], -1, -1)?;
    let interval = integer(fields, LAYERS[2], 1, 1)?;
    let end = if end == -1 { i64::MAX } else { end };
    let has_experts = |layer: usize| {
        let layer = i64::try_from(layer).unwrap_or(i64::MAX);
        (layer.saturating_add(1)) % interval == 0 && (start..=end).contains(&layer)
    };
    experts(config).layers = LayerPattern::from_list((0..config.num_layers).map(has_experts).collect());
    Ok(())
}

fn write_layers(config: &DecoderConfig, settings: &mut Map<String, Value>) {
    let layers: Vec<usize> = (0..config.num_layers).filter(|layer| config.moe_layer(*layer).is_some()).collect();
    let values = match layers[..] {
        // The first layer with experts would be behind the last layer.
        [] => [config.num_layers, config.num_layers, 1],
        [only] => [only, only, 1],
        [first, second, ..] => [first, layers[layers.len() - 1], second - first],
    };
    for (key, value) in LAYERS.into_iter().zip(values) {
        settings.insert(key.into(), json!(value));
    }
}

/// Names of the router's bias, a row of a matrix.
const OWN: &[WeightRule] = &[
    layer!("mlp.router.expert_bias", "mlp.moe_statics.e_score_correction_bias").fused(Fusion::Row),
    layer!("mlp.router.expert_bias", "mlp.gate.moe_statics.e_score_correction_bias").fused(Fusion::Row).stacked(),
];
