//! Llama 4 (Scout, Maverick): rotated layers that attend inside chunks, layers without positions
//! whose queries have a factor, and experts that read a token times its score beside a shared one.

#[cfg(test)]
mod tests;

use super::llama;
use super::prelude::*;
use super::smollm3::{read_no_rope, write_no_rope};
use crate::decoder::QueryScaleConfig;

pub(super) static FAMILY: Family = Family {
    model_type: "llama4_text",
    architecture: "Llama4ForCausalLM",
    settings: SETTINGS,
    weights: &[FEED_FORWARD, llama::WEIGHTS],
    aliases: &[("num_experts", "num_local_experts")],
    ..Family::USUAL
};

/// Settings; absent ones have the values of `Llama4TextConfig`.
const SETTINGS: &[Setting] = &[
    Setting::Rows(SIZES_BESIDE_MLP),
    Setting::KeyValueHeads(8),
    Setting::Group(&HeadSizeOr(128)),
    positions(131_072),
    size_or("intermediate_size_mlp", |c| &mut c.ffn_hidden_size, 16_384),
    size_or("intermediate_size", |c| &mut experts(c).ffn_hidden_size, 8192),
    size_or("num_local_experts", |c| &mut experts(c).num_experts, 16),
    size_or("num_experts_per_tok", |c| &mut experts(c).topk, 1),
    Setting::Always(|c| {
        let moe = experts(c);
        (moe.score_function, moe.raw_scores, moe.weighted_inputs) = (RouterScoreFunction::Sigmoid, true, true);
        moe.shared_expert_intermediate_size = Some(moe.ffn_hidden_size);
    }),
    Setting::Keys { read: read_moe_layers, write: write_moe_layers },
    Setting::Rows(BLOCKS),
    Setting::Rows(ATTENTION_BIAS),
    rms_norm_epsilon(1e-5),
    tied_embeddings(false),
    Setting::Group(&RopeForm { theta: 500_000.0, interleaved: true, ..RopeForm::USUAL }),
    Setting::Keys { read: read_no_rope, write: write_no_rope },
    Setting::Switch("use_qk_norm", |c| &mut c.qk_l2_norm, true),
    // Only layers that are rotated have these norms.
    Setting::Always(|c| {
        c.qk_l2_norm &= (0..c.num_layers).any(|layer| c.rotates(layer));
        c.qk_layernorm_after_rope = c.qk_l2_norm;
    }),
    Setting::Keys { read: read_chunks, write: write_chunks },
    Setting::Keys { read: read_query_scale, write: write_query_scale },
    Setting::Unused(&["no_rope_layer_interval"]),
];

/// Layers with experts: those that a list names, or each of a step.
fn read_moe_layers(fields: &Fields, config: &mut DecoderConfig) -> Result<(), HfError> {
    let step = fields.size("interleave_moe_layer_step")?.unwrap_or(1);
    let listed = fields.layers("moe_layers")?;
    let usual = |layer: usize| (layer + 1).is_multiple_of(step);
    let has_experts = |layer| listed.as_ref().map_or_else(|| usual(layer), |listed| listed.contains(&layer));
    experts(config).layers = LayerPattern::from_list((0..config.num_layers).map(has_experts).collect());
    Ok(())
}

fn write_moe_layers(config: &DecoderConfig, settings: &mut Map<String, Value>) {
    let layers: Vec<usize> = (0..config.num_layers).filter(|layer| config.moe_layer(*layer).is_some()).collect();
    settings.insert("moe_layers".into(), json!(layers));
}

const CHUNK: &str = "attention_chunk_size";
const LAYER_TYPES: [&str; 2] = ["full_attention", "chunked_attention"];

/// Layers attend inside chunks if they are rotated, or if `layer_types` says so.
fn read_chunks(fields: &Fields, config: &mut DecoderConfig) -> Result<(), HfError> {
    let length = if fields.has(CHUNK) { fields.size(CHUNK)? } else { Some(8192) };
    let listed = windows::layers_of_two_types(fields, "layer_types", LAYER_TYPES, config.num_layers)?;
    let usual = || (0..config.num_layers).map(|layer| length.is_some() && config.rotates(layer)).collect();
    let layers = listed.unwrap_or_else(usual);
    config.window_chunks = layers.contains(&true);
    let is_known = length.is_some() || !config.window_chunks;
    fields.require(is_known, CHUNK, "no value", "a length: layer_types names chunked_attention")?;
    windows::set(config, length, layers);
    Ok(())
}

fn write_chunks(config: &DecoderConfig, settings: &mut Map<String, Value>) {
    settings.insert(CHUNK.into(), json!(config.window_size.map(|left| left + 1)));
    let has_chunks = |layer| config.window(layer).is_some();
    settings.insert("layer_types".into(), windows::names_of_layers(LAYER_TYPES, config.num_layers, has_chunks));
}

const TUNING: &str = "attn_temperature_tuning";

/// Queries of layers that are not rotated have a factor, with positions that count from one.
fn read_query_scale(fields: &Fields, config: &mut DecoderConfig) -> Result<(), HfError> {
    // Early files have a number in place of a switch.
    let is_off = fields.has(TUNING) && fields.get(TUNING).is_none_or(|on| *on == false || *on == 0);
    let beta = fields.number("attn_scale")?.unwrap_or(0.1);
    let length = fields.size("floor_scale")?.unwrap_or(8192);
    let scale = QueryScaleConfig { beta, length, first: 1, unrotated_only: true };
    config.query_scale = Some(scale).filter(|_| !is_off && beta != 0.0);
    Ok(())
}

fn write_query_scale(config: &DecoderConfig, settings: &mut Map<String, Value>) {
    settings.insert(TUNING.into(), json!(config.query_scale.is_some()));
    if let Some(scale) = config.query_scale {
        settings.insert("attn_scale".into(), json!(scale.beta));
        settings.insert("floor_scale".into(), json!(scale.length));
    }
}

/// Names of feed-forward blocks. All experts of a layer are in one tensor, with matrices `[inputs,
/// outputs]`.
const FEED_FORWARD: &[WeightRule] = &[
    layer!("mlp.linear_fc1.weight", "feed_forward.gate_proj.weight", "feed_forward.up_proj.weight")
        .fused(Fusion::GateUp),
    layer!("mlp.linear_fc2.weight", "feed_forward.down_proj.weight"),
    layer!("mlp.router.weight", "feed_forward.router.weight"),
    layer!(
        "mlp.shared_experts.linear_fc1.weight",
        "feed_forward.shared_expert.gate_proj.weight",
        "feed_forward.shared_expert.up_proj.weight"
    )
    .fused(Fusion::GateUp),
    layer!("mlp.shared_experts.linear_fc2.weight", "feed_forward.shared_expert.down_proj.weight"),
    layer!("mlp.experts.local_experts.{}.linear_fc1.weight", "feed_forward.experts.gate_up_proj")
        .rows_are_inputs()
        .stacked(),
    layer!("mlp.experts.local_experts.{}.linear_fc2.weight", "feed_forward.experts.down_proj")
        .rows_are_inputs()
        .stacked(),
];
