//! Settings of Qwen 3; absent ones have the values of `Qwen3Config`.

use serde_json::{Map, Value, json};

use crate::decoder::{DecoderConfig, LayerPattern};
use crate::families::llama::config::{LAYERS, SIZES};
use crate::huggingface::error::HfError;
use crate::huggingface::fields::Fields;
use crate::huggingface::settings::{Setting, size_or};

pub(super) const SETTINGS: &[Setting] = &[
    Setting::Rows(SIZES),
    size_or("head_dim", |c| &mut c.kv_channels, |_, _| Ok(128)),
    size_or("max_position_embeddings", |c| &mut c.max_position_embeddings, |_, _| Ok(32_768)),
    Setting::Always(|c| c.qk_layernorm = true),
    Setting::Rows(LAYERS),
    Setting::Keys { read: read_window, write: write_window },
];

/// What `layer_types` calls a layer without and one with a window.
const LAYER_TYPES: [&str; 2] = ["full_attention", "sliding_attention"];

/// A window of `sliding_window` tokens, that of the query counted, in the layers that `layer_types` names, or from number
/// `max_window_layers` on.
fn read_window(fields: &Fields, config: &mut DecoderConfig) -> Result<(), HfError> {
    let size = match fields.bool("use_sliding_window")? {
        Some(true) => match fields.size("sliding_window")? {
            Some(size) => Some(size),
            None => return Err(fields.error("sliding_window", "no such setting", "an integer of at least 1")),
        },
        Some(false) | None => None,
    };
    let layers = match fields.get("layer_types") {
        Some(types) => layer_types(fields, types, config.num_layers)?,
        None => {
            let first = fields.get("max_window_layers").map_or(Some(28), Value::as_u64);
            let first = first.and_then(|first| usize::try_from(first).ok());
            let expected = "an integer of at least 0";
            let first = first.ok_or_else(|| fields.error("max_window_layers", "something else", expected))?;
            (0..config.num_layers).map(|layer| size.is_some() && layer >= first).collect()
        }
    };
    let has_window = layers.contains(&true);
    let expected = "full_attention in all layers, because use_sliding_window is not true";
    fields.require(size.is_some() || !has_window, "layer_types", LAYER_TYPES[1], expected)?;
    if has_window {
        config.window_size = size.map(|size| size - 1);
        config.window_layers = LayerPattern::from_list(layers);
    }
    Ok(())
}

/// Whether each layer has a window.
fn layer_types(fields: &Fields, types: &Value, num_layers: usize) -> Result<Vec<bool>, HfError> {
    let is_windowed = |name: &Value| LAYER_TYPES.iter().position(|known| name == known).map(|index| index == 1);
    let layers: Option<Vec<bool>> = types.as_array().and_then(|types| types.iter().map(is_windowed).collect());
    let expected = || format!("{} or {} for each of {num_layers} layers", LAYER_TYPES[0], LAYER_TYPES[1]);
    let layers = layers.filter(|layers| layers.len() == num_layers);
    layers.ok_or_else(|| fields.error("layer_types", &types.to_string(), &expected()))
}

fn write_window(config: &DecoderConfig, settings: &mut Map<String, Value>) {
    let has_window = |layer| config.window_size.is_some() && config.window_layers.includes(layer);
    let layers: Vec<bool> = (0..config.num_layers).map(has_window).collect();
    settings.insert("use_sliding_window".into(), json!(config.window_size.is_some()));
    if let Some(left) = config.window_size {
        settings.insert("sliding_window".into(), json!(left + 1));
        let first = layers.iter().position(|has_window| *has_window);
        settings.insert("max_window_layers".into(), json!(first.unwrap_or(config.num_layers)));
    }
    let types: Vec<&str> = layers.iter().map(|has_window| LAYER_TYPES[usize::from(*has_window)]).collect();
    settings.insert("layer_types".into(), json!(types));
}
