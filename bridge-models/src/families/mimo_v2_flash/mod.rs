//! MiMo-V2-Flash: layers with a sliding window, sinks and twice the key/value heads between full
//! ones, values of another size than keys, and experts behind a sigmoid router. Layers of
//! multi-token prediction in published files are ignored, as in transformers.

#[cfg(test)]
mod tests;

use super::llama;
use super::mixture::{self, MlpLayerTypes, SigmoidRouter};
use super::prelude::*;
use crate::decoder::WindowedConfig;
use crate::huggingface::rope::ByLayerType;

pub(super) static FAMILY: Family = Family {
    model_type: "mimo_v2_flash",
    architecture: "MiMoV2FlashForCausalLM",
    settings: SETTINGS,
    weights: &[SINKS, mixture::SHARED, mixture::APART, mixture::STACKED, llama::WEIGHTS],
    module_names: &[(".attention_sink_bias", ".sinks")],
    dropped: &["model.mtp."],
    aliases: &[("num_local_experts", "n_routed_experts"), ("layernorm_epsilon", "rms_norm_eps")],
    ..Family::USUAL
};

/// Settings; absent ones have the values of `MiMoV2FlashConfig`.
const SETTINGS: &[Setting] = &[
    Setting::Rows(SIZES),
    Setting::KeyValueHeads(4),
    head_size(192),
    Setting::Keys { read: read_values, write: write_values },
    positions(131_072),
    size_or("moe_intermediate_size", |c| &mut experts(c).ffn_hidden_size, 2048),
    size_or("n_routed_experts", |c| &mut experts(c).num_experts, 256),
    size_or("num_experts_per_tok", |c| &mut experts(c).topk, 8),
    Setting::Group(&SigmoidRouter::UNGROUPED),
    Setting::Group(&MlpLayerTypes(None)),
    Setting::Rows(BLOCKS),
    // The output projection has no bias.
    Setting::Switch("attention_bias", |c| &mut c.qkv_bias, false),
    rms_norm_epsilon(1e-5),
    tied_embeddings(false),
    Setting::Keys { read: read_windows, write: windows::write_pattern },
    Setting::Group(&ROPE),
    // transformers ignores these keys of published files; other programs compute something else
    // for other values.
    Setting::Only("scoring_func", || json!("sigmoid")),
    Setting::Only("topk_method", || json!("noaux_tc")),
    Setting::Only("add_swa_attention_sink_bias", || json!(true)),
    Setting::Only("add_full_attention_sink_bias", || json!(false)),
    Setting::Only("n_shared_experts", || Value::Null),
    Setting::Rule(published_keys_agree),
    Setting::Unused(&["attention_chunk_size", "hybrid_block_size"]),
];

const ROPE: ByLayerType = ByLayerType {
    full: RopeForm { theta: 5_000_000.0, percent: Some(0.334), ..RopeForm::USUAL },
    local_theta: 10_000.0,
    local_key: Some("swa_rope_theta"),
};

fn read_values(fields: &Fields, config: &mut DecoderConfig) -> Result<(), HfError> {
    let size = fields.size("v_head_dim")?.unwrap_or(128);
    config.value_channels = Some(size).filter(|size| *size != config.kv_channels);
    // Null means another value than absence.
    let absent = if fields.has("attention_value_scale") { 1.0 } else { 0.707 };
    config.value_scale = fields.number("attention_value_scale")?.unwrap_or(absent);
    Ok(())
}

fn write_values(config: &DecoderConfig, settings: &mut Map<String, Value>) {
    settings.insert("v_head_dim".into(), json!(config.value_size()));
    settings.insert("attention_value_scale".into(), json!(config.value_scale));
}

/// Windowed layers have twice the key/value heads, and sinks. Published files count the keys before
/// the query in `sliding_window_size`.
fn read_windows(fields: &Fields, config: &mut DecoderConfig) -> Result<(), HfError> {
    let usual = (1..=config.num_layers).map(|number| number != 1 && !number.is_multiple_of(6)).collect();
    windows::read_layers(fields, config, 129, usual)?;
    let published = fields.size("sliding_window_size")?;
    if config.window_size.is_none() {
        return Ok(());
    }
    config.window_size = published.or(config.window_size);
    let (heads, groups) = (config.num_attention_heads, config.num_query_groups);
    let expected = format!("a divisor of half of num_attention_heads ({heads}): windowed layers have twice as many");
    fields.require(heads.is_multiple_of(2 * groups), "num_key_value_heads", &groups.to_string(), &expected)?;
    config.windowed =
        WindowedConfig { num_query_groups: Some(2 * groups), attention_sinks: Some(true), ..WindowedConfig::default() };
    Ok(())
}

/// Keys by which published files say again what follows from others.
fn published_keys_agree(fields: &Fields, config: &DecoderConfig) -> Result<(), HfError> {
    let windowed = config.of_windowed();
    let marks = |marks: Vec<bool>| json!(marks.into_iter().map(u8::from).collect::<Vec<_>>());
    let sparse = (0..config.num_layers).map(|layer| config.moe_layer(layer).is_some()).collect();
    for (key, expected) in [
        ("hybrid_layer_pattern", marks(windows::windowed_layers(config))),
        ("moe_layer_freq", marks(sparse)),
        ("swa_num_attention_heads", json!(windowed.num_attention_heads)),
        ("swa_num_key_value_heads", json!(windowed.num_query_groups)),
        ("swa_head_dim", json!(windowed.kv_channels)),
        ("swa_v_head_dim", json!(windowed.value_size())),
    ] {
        fields.only(key, &expected)?;
    }
    Ok(())
}

/// Name of the sinks in files.
const SINKS: &[WeightRule] = &[layer!("self_attention.core_attention.softmax_offset", "self_attn.attention_sink_bias")];
