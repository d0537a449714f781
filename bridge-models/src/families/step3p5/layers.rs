//! Settings of Step 3.5 by layer: windows with heads and rotation of their own, experts, bounds of
//! units. Lists of published files also have the layers of multi-token prediction.

use crate::decoder::WindowedConfig;
use crate::families::mixture::MlpLayerTypes;
use crate::families::prelude::*;
use crate::huggingface::rope::ByLayerType;
use crate::huggingface::windows::LAYER_TYPES;

const LISTS: [&str; 8] = [
    "layer_types",
    "mlp_layer_types",
    "moe_layers_enum",
    "partial_rotary_factors",
    "rope_theta",
    "sliding_window",
    LIMITS[0],
    LIMITS[1],
];
/// Keys of the bounds of dense and shared blocks, and of experts.
const LIMITS: [&str; 2] = ["swiglu_limits_shared", "swiglu_limits"];
const HEADS: &str = "num_attention_heads";
const WINDOWED_HEADS: &str = "num_sliding_attention_heads";

const BY_LAYER_TYPE: ByLayerType = ByLayerType {
    full: RopeForm { percent: Some(1.0), original_length: OriginalLength::InTable, ..RopeForm::USUAL },
    local_theta: 10_000.0,
    local_key: None,
};

pub(super) fn read(fields: &Fields, config: &mut DecoderConfig) -> Result<(), HfError> {
    let num_layers = config.num_layers;
    let predicted = fields.get("num_nextn_predict_layers").and_then(Value::as_u64).unwrap_or(0) as usize;
    let trimmed = |key: &&str| {
        let mut value = fields.get(key)?.clone();
        if let Some(list) = value.as_array_mut().filter(|list| list.len() == num_layers.saturating_add(predicted)) {
            list.truncate(num_layers);
        }
        Some(((*key).to_owned(), value))
    };
    let lists: Map<String, Value> = LISTS.iter().filter_map(trimmed).collect();
    let lists = Fields::from_table("", &lists);
    let windowed = windows::layer_types(&lists, num_layers)?.unwrap_or_else(|| vec![false; num_layers]);
    windows::set_switched(&lists, config, lists.size(windows::SIZE)?, windowed.clone())?;
    match lists.get("mlp_layer_types") {
        Some(_) => MlpLayerTypes(None).read(&lists, config)?,
        None => read_sparse(&lists, config)?,
    }
    config.output_limits = limits(&lists, LIMITS[0], num_layers)?;
    experts(config).output_limits = limits(&lists, LIMITS[1], num_layers)?;
    read_heads(fields, config, &windowed)?;
    read_rope(fields, &lists, config, &windowed)
}

pub(super) fn write(config: &DecoderConfig, settings: &mut Map<String, Value>) {
    windows::write_pattern(config, settings);
    MlpLayerTypes(None).write(config, settings);
    let of_experts = config.moe.as_ref().and_then(|moe| moe.output_limits.as_ref());
    for (key, limits) in LIMITS.into_iter().zip([config.output_limits.as_ref(), of_experts]) {
        settings.insert(key.into(), json!(limits));
    }
    let heads = config.of_windowed().num_attention_heads;
    settings.insert(WINDOWED_HEADS.into(), json!(heads));
    let layers = (0..config.num_layers).filter(|layer| config.window(*layer).is_some());
    let of_layers = layers.map(|layer| (layer.to_string(), json!({ HEADS: heads })));
    settings.insert("per_layer_config".into(), Value::Object(of_layers.collect()));
    BY_LAYER_TYPE.write(config, settings);
}

/// Without `mlp_layer_types`: the layers of `moe_layers_enum`, or all but the first three.
fn read_sparse(fields: &Fields, config: &mut DecoderConfig) -> Result<(), HfError> {
    let (key, count) = ("moe_layers_enum", config.num_layers as u64);
    let sparse: Option<Vec<u64>> = match fields.get(key) {
        None => Some((3..count).collect()),
        Some(Value::String(text)) => {
            text.split(',').map(str::trim).filter(|layer| !layer.is_empty()).map(|layer| layer.parse().ok()).collect()
        }
        Some(list) => list.as_array().and_then(|list| list.iter().map(Value::as_u64).collect()),
    };
    let sparse = sparse.ok_or_else(|| fields.error(key, "something else", "numbers of layers"))?;
    experts(config).layers = LayerPattern::from_list((0..count).map(|layer| sparse.contains(&layer)).collect());
    Ok(())
}

/// Bounds of which at least one is not zero; null is zero.
fn limits(fields: &Fields, key: &str, num_layers: usize) -> Result<Option<Vec<f64>>, HfError> {
    let Some(value) = fields.get(key) else { return Ok(None) };
    let limit = |limit: &Value| if limit.is_null() { Some(0.0) } else { limit.as_f64().filter(|limit| *limit >= 0.0) };
    let limits: Option<Vec<f64>> = value.as_array().and_then(|limits| limits.iter().map(limit).collect());
    let limits = limits.filter(|limits| [0, num_layers].contains(&limits.len()));
    let expected = format!("a number of at least 0, or null, for each of {num_layers} layers");
    let limits = limits.ok_or_else(|| fields.error(key, &value.to_string(), &expected))?;
    Ok(Some(limits).filter(|limits| limits.iter().any(|limit| *limit > 0.0)))
}

/// Query heads of windowed layers: those of `per_layer_config` where it is there.
fn read_heads(fields: &Fields, config: &mut DecoderConfig, windowed: &[bool]) -> Result<(), HfError> {
    let usual = config.num_attention_heads;
    let other = fields.table("attention_other_setting", "attention_other_setting.")?;
    let of_other = other.as_ref().map_or(Ok(None), |other| {
        other.only("num_attention_groups", &json!(config.num_query_groups))?;
        other.only("head_dim", &json!(config.kv_channels))?;
        other.size(HEADS)
    })?;
    let said = fields.size(WINDOWED_HEADS)?.or(of_other).unwrap_or(usual);
    let tables = fields.table("per_layer_config", "per_layer_config.")?;
    let of_layer = |layer: usize| -> Result<usize, HfError> {
        let Some(tables) = &tables else { return Ok(if windowed[layer] { said } else { usual }) };
        let Some(table) = tables.table(&layer.to_string(), "per_layer_config.")? else { return Ok(usual) };
        if let Some((key, value)) = table.entries().find(|(key, _)| key != HEADS) {
            return Err(table.error(&key, &value.to_string(), "no such key: layers differ in their heads alone"));
        }
        Ok(table.size(HEADS)?.unwrap_or(usual))
    };
    let all = (0..config.num_layers).map(of_layer).collect::<Result<Vec<_>, _>>()?;
    let first = windowed.iter().position(|has_window| *has_window);
    let heads = first.map_or(usual, |layer| all[layer]);
    let fits = |(found, has_window): (&usize, &bool)| *found == if *has_window { heads } else { usual };
    let expected = format!("one number of query heads in windowed layers, and {usual} in others");
    fields.require(all.iter().zip(windowed).all(fits), "per_layer_config", &format!("{all:?}"), &expected)?;
    let groups = config.num_query_groups;
    let expected = format!("a multiple of num_key_value_heads ({groups})");
    fields.require(heads.is_multiple_of(groups), WINDOWED_HEADS, &heads.to_string(), &expected)?;
    config.windowed =
        WindowedConfig { num_attention_heads: Some(heads), ..WindowedConfig::default() }.where_not_of(config);
    Ok(())
}

/// A table for each type of layer that is there, or values for each layer beside `rope_scaling`,
/// which is of full layers.
fn read_rope(fields: &Fields, lists: &Fields, config: &mut DecoderConfig, windowed: &[bool]) -> Result<(), HfError> {
    let tables = fields.get("rope_parameters").and_then(Value::as_object);
    let scaling = fields.table("rope_scaling", "rope_scaling.")?;
    let mut resolved = Map::new();
    for (name, is_windowed) in LAYER_TYPES.into_iter().zip([false, true]) {
        let layers = || (0..windowed.len()).filter(|layer| windowed[*layer] == is_windowed);
        let Some(first) = layers().next() else { continue };
        let value = |key: &str| -> Result<Option<Value>, HfError> {
            let Some(list) = lists.get(key) else { return Ok(None) };
            let of_layer = |layer: usize| if list.is_array() { list.get(layer) } else { Some(list) };
            let expected = format!("one number for all layers of {name}");
            let is_one = layers().all(|layer| of_layer(layer) == of_layer(first) && of_layer(layer).is_some());
            fields.require(is_one, key, &list.to_string(), &expected)?;
            Ok(of_layer(first).cloned())
        };
        let mut table = json!({ "rope_type": "default", "rope_theta": value("rope_theta")?.unwrap_or(json!(1e4)) });
        table["partial_rotary_factor"] = value("partial_rotary_factors")?.unwrap_or(json!(1.0));
        let of_full = scaling.iter().filter(|_| !is_windowed).flat_map(Fields::entries);
        of_full.for_each(|(key, value)| table[key] = value);
        resolved.insert(name.into(), table);
    }
    // transformers takes the tables if none of these types is missing.
    let has_all =
        |tables: &&Map<String, Value>| resolved.keys().all(|name| tables.get(name).is_some_and(Value::is_object));
    let tables = tables.filter(has_all).map_or(json!(resolved), |tables| json!(tables));
    let tables = Map::from_iter([("rope_parameters".to_owned(), tables)]);
    BY_LAYER_TYPE.read(&Fields::from_table("", &tables), config)
}
