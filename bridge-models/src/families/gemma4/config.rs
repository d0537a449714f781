//! Settings of Gemma 4; absent ones have the values of `Gemma4TextConfig`.

use crate::decoder::{PerLayerConfig, WindowedConfig};
use crate::families::prelude::*;
use crate::huggingface::rope::ByLayerType;

const FORM: ByLayerType = ByLayerType {
    full: RopeForm { original_length: OriginalLength::InTable, ..RopeForm::USUAL },
    local_theta: 10_000.0,
    local_key: None,
};

pub(super) const SETTINGS: &[Setting] = &[
    size("vocab_size", |c| &mut c.vocab_size),
    size("hidden_size", |c| &mut c.hidden_size),
    size("intermediate_size", |c| &mut c.ffn_hidden_size),
    size("num_hidden_layers", |c| &mut c.num_layers),
    size("num_attention_heads", |c| &mut c.num_attention_heads),
    positions(131_072),
    Setting::Always(|c| {
        (c.norm.kind, c.residual.norms) = (Normalization::RmsNorm, NormPlacement::Sandwich);
        (c.qk_layernorm, c.v_l2_norm, c.softmax_scale) = (true, true, 1.0);
        (c.gated_linear_unit, c.layer_scalar) = (true, true);
        // Rounded to float32, as the released models' factor is.
        c.embedding_multiplier = f64::from((c.hidden_size as f64).sqrt() as f32);
    }),
    Setting::NamedActivation("hidden_activation", |c| &mut c.activation, "gelu_pytorch_tanh"),
    initializer_range(0.02),
    rms_norm_epsilon(1e-6),
    Setting::Rows(ATTENTION_BIAS),
    Setting::Number("attention_dropout", |c| &mut c.attention_dropout, 0.0),
    tied_embeddings(true),
    Setting::Rule(|fields, _| {
        // Text is causal with "vision" too.
        let found = fields.get("use_bidirectional_attention").map_or("null", |value| value.as_str().unwrap_or("else"));
        fields.require(["null", "vision"].contains(&found), "use_bidirectional_attention", found, "null or vision")
    }),
    Setting::Switch("attention_k_eq_v", |c| &mut c.keys_as_values, false),
    Setting::Keys { read: read_windows, write: windows::write_pattern },
    Setting::Keys { read: read_heads, write: write_heads },
    Setting::Keys { read: read_rope, write: |c, settings| rope::write_tables(c, settings, FORM) },
    Setting::NumberOrNone("final_logit_softcapping", |c| &mut c.logit_softcap, None),
    Setting::Count("num_kv_shared_layers", |c| &mut c.num_kv_shared_layers, 0),
    Setting::Switch("use_double_wide_mlp", |c| &mut c.double_wide_mlp, false),
    // Only layers that use the keys of others are wider.
    Setting::Always(|c| c.double_wide_mlp &= c.num_kv_shared_layers > 0),
    Setting::Keys { read: read_per_layer, write: write_per_layer },
    Setting::Keys { read: read_experts, write: write_experts },
];

/// The last layer has no window, whatever its type says.
fn read_windows(fields: &Fields, config: &mut DecoderConfig) -> Result<(), HfError> {
    let usual = || (1..=config.num_layers).map(|number| !number.is_multiple_of(6)).collect();
    let mut layers = windows::layer_types(fields, config.num_layers)?.unwrap_or_else(usual);
    layers.last_mut().into_iter().for_each(|last| *last = false);
    let window = fields.size(windows::SIZE)?.unwrap_or(512);
    windows::set(config, Some(window), layers);
    Ok(())
}

const OVERRIDES: &str = "per_layer_config";

/// Heads of windowed layers, and those of full ones: in `per_layer_config`, or before there was
/// such a table in keys of their own.
fn read_heads(fields: &Fields, config: &mut DecoderConfig) -> Result<(), HfError> {
    let windowed = [fields.size("head_dim")?.unwrap_or(256), fields.size("num_key_value_heads")?.unwrap_or(4)];
    let of_full = [fields.size("global_head_dim")?, fields.size("num_global_key_value_heads")?];
    let [head, groups] = match fields.get(OVERRIDES) {
        None => {
            let groups = of_full[1].filter(|_| config.keys_as_values).unwrap_or(windowed[1]);
            [of_full[0].unwrap_or(512), groups]
        }
        Some(table) => {
            let full = overrides(table, config, windowed);
            let expected = "the same head_dim and num_key_value_heads for all full_attention layers, and no other";
            full.ok_or_else(|| fields.error(OVERRIDES, &table.to_string(), expected))?
        }
    };
    (config.kv_channels, config.num_query_groups) = (head, groups);
    let [head, groups] = windowed;
    let other = WindowedConfig { kv_channels: Some(head), num_query_groups: Some(groups), ..WindowedConfig::neutral() };
    if config.window_size.is_some() {
        config.windowed = other.where_not_of(config);
    }
    let (heads, groups) = (config.num_attention_heads, config.num_query_groups);
    let expected = format!("a divisor of num_attention_heads ({heads})");
    fields.require(heads.is_multiple_of(groups), "num_key_value_heads", &groups.to_string(), &expected)
}

/// Size and number of the heads of all full layers.
fn overrides(table: &Value, config: &DecoderConfig, usual: [usize; 2]) -> Option<[usize; 2]> {
    let table = table.as_object()?;
    let of = |layer: usize| -> Option<[usize; 2]> {
        let Some(own) = table.get(&layer.to_string()) else { return Some(usual) };
        let known = |key: &str, usual: usize| own.get(key).map_or(Some(usual), |n| n.as_u64()?.try_into().ok());
        let is_known = own.as_object()?.keys().all(|key| ["head_dim", "num_key_value_heads"].contains(&key.as_str()));
        is_known.then_some([known("head_dim", usual[0])?, known("num_key_value_heads", usual[1])?])
    };
    let full = of(config.num_layers - 1)?;
    let fits = |layer| of(layer) == Some(if config.window(layer).is_some() { usual } else { full });
    let is_layer = |key: &String| key.parse::<usize>().is_ok_and(|layer| layer < config.num_layers);
    (full.iter().all(|size| *size > 0) && (0..config.num_layers).all(fits) && table.keys().all(is_layer))
        .then_some(full)
}

/// Writes both forms.
fn write_heads(config: &DecoderConfig, settings: &mut Map<String, Value>) {
    let windowed = config.of_windowed();
    let sizes = [
        ("head_dim", config.kv_channels, windowed.kv_channels),
        ("num_key_value_heads", config.num_query_groups, windowed.num_query_groups),
    ];
    let other = sizes.into_iter().filter(|(_, full, windowed)| full != windowed);
    let own: Map<String, Value> = other.map(|(key, full, _)| (key.to_owned(), json!(full))).collect();
    let full = (0..config.num_layers).filter(|layer| config.window(*layer).is_none() && !own.is_empty());
    let table: Map<String, Value> = full.map(|layer| (layer.to_string(), json!(own))).collect();
    let groups = config.keys_as_values.then_some(config.num_query_groups);
    let keys = json!({
        "head_dim": windowed.kv_channels,
        "num_key_value_heads": windowed.num_query_groups,
        "global_head_dim": config.kv_channels,
        "num_global_key_value_heads": groups,
        OVERRIDES: table,
    });
    settings.extend(keys.as_object().cloned().unwrap_or_default());
}

fn read_rope(fields: &Fields, config: &mut DecoderConfig) -> Result<(), HfError> {
    if fields.get("rope_parameters").is_some() {
        return rope::read_by_layer_type(fields, config, FORM);
    }
    let rope = RopeConfig {
        base: 1_000_000.0,
        windowed_base: config.window_size.map(|_| FORM.local_theta),
        scaling: Some(RopeScaling::Proportional { share: 0.25 }),
        ..RopeConfig::neutral()
    };
    rope::check_pairs(fields, config, &rope, FORM.full)?;
    config.position_embedding = PositionEmbedding::Rope(rope);
    Ok(())
}

pub(crate) fn read_per_layer(fields: &Fields, config: &mut DecoderConfig) -> Result<(), HfError> {
    let size = fields.count("hidden_size_per_layer_input")?.unwrap_or(256);
    let vocab_size = fields.size("vocab_size_per_layer_input")?.unwrap_or(262_144);
    config.per_layer = (size > 0).then_some(PerLayerConfig { size, vocab_size });
    Ok(())
}

pub(crate) fn write_per_layer(config: &DecoderConfig, settings: &mut Map<String, Value>) {
    let size = config.per_layer.map_or(0, |per_layer| per_layer.size);
    settings.insert("hidden_size_per_layer_input".into(), json!(size));
    let rows = config.per_layer.map(|per_layer| ("vocab_size_per_layer_input".to_owned(), json!(per_layer.vocab_size)));
    settings.extend(rows);
}

const SIZES_OF_EXPERTS: [&str; 3] = ["num_experts", "top_k_experts", "moe_intermediate_size"];

fn read_experts(fields: &Fields, config: &mut DecoderConfig) -> Result<(), HfError> {
    if fields.bool("enable_moe_block")? != Some(true) {
        SIZES_OF_EXPERTS.iter().for_each(|key| fields.ask(key));
        return Ok(());
    }
    let size = |key| fields.size(key)?.ok_or_else(|| fields.missing(key, "an integer of at least 1"));
    let [num_experts, topk, ffn] = SIZES_OF_EXPERTS;
    let moe = experts(config);
    (moe.num_experts, moe.topk, moe.ffn_hidden_size) = (size(num_experts)?, size(topk)?, size(ffn)?);
    (moe.dense_beside, moe.scaled_router) = (true, true);
    Ok(())
}

fn write_experts(config: &DecoderConfig, settings: &mut Map<String, Value>) {
    settings.insert("enable_moe_block".into(), json!(config.moe.is_some()));
    let sizes = config.moe.as_ref().map(|moe| [moe.num_experts, moe.topk, moe.ffn_hidden_size]);
    let sizes = sizes.map(|sizes| SIZES_OF_EXPERTS.into_iter().zip(sizes));
    settings.extend(sizes.into_iter().flatten().map(|(key, size)| (key.to_owned(), json!(size))));
}
