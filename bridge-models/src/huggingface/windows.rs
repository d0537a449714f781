//! Sliding windows of `config.json`: `sliding_window` tokens, including the query, in all layers or
//! in those that `layer_types` names. `DecoderConfig::window_size` counts earlier tokens only.

use serde_json::{Map, Value, json};

use super::error::HfError;
use super::fields::Fields;
use crate::decoder::{DecoderConfig, LayerPattern};

/// Names in `layer_types` of a layer without a window and of one with a window.
pub(crate) const LAYER_TYPES: [&str; 2] = ["full_attention", "sliding_attention"];

/// Gives the layers marked true a window of `size` tokens, including the query; `None` means no
/// window.
pub(crate) fn set(config: &mut DecoderConfig, size: Option<usize>, layers: Vec<bool>) {
    if layers.contains(&true) {
        config.window_size = size.map(|size| size - 1);
        config.window_layers = LayerPattern::from_list(layers);
    }
}

/// True for each layer with a window, if `layer_types` is present.
pub(crate) fn layer_types(fields: &Fields, num_layers: usize) -> Result<Option<Vec<bool>>, HfError> {
    let Some(types) = fields.get("layer_types") else {
        return Ok(None);
    };
    let is_windowed = |name: &Value| LAYER_TYPES.iter().position(|known| name == known).map(|index| index == 1);
    let layers: Option<Vec<bool>> = types.as_array().and_then(|types| types.iter().map(is_windowed).collect());
    let expected = || format!("{} or {} for each of {num_layers} layers", LAYER_TYPES[0], LAYER_TYPES[1]);
    let layers = layers.filter(|layers| layers.len() == num_layers);
    layers.map(Some).ok_or_else(|| fields.error("layer_types", &types.to_string(), &expected()))
}

/// True for each layer with a window.
pub(crate) fn windowed_layers(config: &DecoderConfig) -> Vec<bool> {
    let has_window = |layer| config.window_size.is_some() && config.window_layers.includes(layer);
    (0..config.num_layers).map(has_window).collect()
}

/// `layer_types` of the layers, of which those marked true have a window.
pub(crate) fn type_names(layers: &[bool]) -> Value {
    json!(layers.iter().map(|has_window| LAYER_TYPES[usize::from(*has_window)]).collect::<Vec<_>>())
}

/// Reads the window of a family whose layers all have the same: null means no window, and `absent`
/// is the value without a key.
pub(crate) fn read_of_all(fields: &Fields, config: &mut DecoderConfig, absent: Option<usize>) -> Result<(), HfError> {
    let size = if fields.has("sliding_window") { fields.size("sliding_window")? } else { absent };
    set(config, size, vec![size.is_some(); config.num_layers]);
    Ok(())
}

/// Writes the window of a family whose layers all have the same.
pub(crate) fn write_of_all(config: &DecoderConfig, settings: &mut Map<String, Value>) {
    settings.insert("sliding_window".into(), json!(config.window_size.map(|left| left + 1)));
}

/// Reads the windows of a family that names the windowed layers: without `layer_types`, all layers
/// except each `pattern`-th. The default size is `size`, and null means no window.
pub(crate) fn read_pattern(
    fields: &Fields,
    config: &mut DecoderConfig,
    size: usize,
    pattern: usize,
) -> Result<(), HfError> {
    let size = if fields.has("sliding_window") { fields.size("sliding_window")? } else { Some(size) };
    let usual = (1..=config.num_layers).map(|number| !number.is_multiple_of(pattern)).collect();
    let layers = layer_types(fields, config.num_layers)?.unwrap_or(usual);
    set(config, size, layers.into_iter().map(|has_window| has_window && size.is_some()).collect());
    Ok(())
}

/// Writes the windows of a family that names the windowed layers.
pub(crate) fn write_pattern(config: &DecoderConfig, settings: &mut Map<String, Value>) {
    // Cohere2 and Gemma of transformers need a size even if no layer has a window: that of the
    // original folder, or the default, stays.
    if config.window_size.is_some() {
        write_of_all(config, settings);
    }
    settings.insert("layer_types".into(), type_names(&windowed_layers(config)));
}

/// The size in families with a switch `use_sliding_window`.
pub(crate) fn switched_size(fields: &Fields) -> Result<Option<usize>, HfError> {
    match (fields.bool("use_sliding_window")?, fields.size("sliding_window")?) {
        (Some(true), None) => Err(fields.error("sliding_window", "no value", "an integer of at least 1")),
        (Some(true), size) => Ok(size),
        (Some(false) | None, _) => Ok(None),
    }
}

/// Sets the window of a family with a switch. Layers that have none cannot be named as such with
/// one.
pub(crate) fn set_switched(
    fields: &Fields,
    config: &mut DecoderConfig,
    size: Option<usize>,
    layers: Vec<bool>,
) -> Result<(), HfError> {
    let expected = "full_attention in all layers, because use_sliding_window is not true";
    fields.require(size.is_some() || !layers.contains(&true), "layer_types", LAYER_TYPES[1], expected)?;
    set(config, size, layers);
    Ok(())
}

/// Writes the switch, the size and the types of the layers.
pub(crate) fn write_switched(config: &DecoderConfig, settings: &mut Map<String, Value>) {
    let layers = windowed_layers(config);
    settings.insert("use_sliding_window".into(), json!(config.window_size.is_some()));
    settings.insert("layer_types".into(), type_names(&layers));
    if let Some(left) = config.window_size {
        settings.insert("sliding_window".into(), json!(left + 1));
    }
}
