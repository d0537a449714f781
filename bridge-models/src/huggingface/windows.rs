//! Sliding windows of `config.json`: `sliding_window` tokens, including the query, in all layers or
//! in those that `layer_types` names. `DecoderConfig::window_size` counts earlier tokens only.

use serde_json::{Map, Value, json};

use super::error::HfError;
use super::fields::Fields;
use super::rope::RopeForm;
use super::settings::KeyGroup;
use crate::decoder::{DecoderConfig, LayerPattern, PositionEmbedding};

/// Names in `layer_types` of a layer without a window and of one with a window.
pub(crate) const LAYER_TYPES: [&str; 2] = ["full_attention", "sliding_attention"];

/// Key of the size of the window.
pub(crate) const SIZE: &str = "sliding_window";

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
    layers_of_two_types(fields, "layer_types", LAYER_TYPES, num_layers)
}

/// True for each layer that the list `key` gives the second of two types, if the key is present.
pub(crate) fn layers_of_two_types(
    fields: &Fields,
    key: &str,
    names: [&str; 2],
    num_layers: usize,
) -> Result<Option<Vec<bool>>, HfError> {
    let Some(types) = fields.get(key) else { return Ok(None) };
    let is_second = |name: &Value| names.iter().position(|known| name == known).map(|index| index == 1);
    let layers: Option<Vec<bool>> = types.as_array().and_then(|types| types.iter().map(is_second).collect());
    let expected = || format!("{} or {} for each of {num_layers} layers", names[0], names[1]);
    let layers = layers.filter(|layers| layers.len() == num_layers);
    layers.map(Some).ok_or_else(|| fields.error(key, &types.to_string(), &expected()))
}

/// True for each layer with a window.
pub(crate) fn windowed_layers(config: &DecoderConfig) -> Vec<bool> {
    (0..config.num_layers).map(|layer| config.window(layer).is_some()).collect()
}

/// `layer_types` of the layers, of which those marked true have a window.
pub(crate) fn type_names(layers: &[bool]) -> Value {
    names_of_layers(LAYER_TYPES, layers.len(), |layer| layers[layer])
}

/// A list with one of two names for each layer: the second where a condition holds.
pub(crate) fn names_of_layers(names: [&str; 2], count: usize, is_second: impl Fn(usize) -> bool) -> Value {
    json!((0..count).map(|layer| names[usize::from(is_second(layer))]).collect::<Vec<_>>())
}

/// Rotary settings of a family that rotates windowed layers alone. Windows are set before.
pub(crate) struct WindowedRope(pub RopeForm);

impl KeyGroup for WindowedRope {
    fn read(&self, fields: &Fields, config: &mut DecoderConfig) -> Result<(), HfError> {
        self.0.read(fields, config)?;
        set_unrotated(config, windowed_layers(config).into_iter().map(|has_window| !has_window).collect());
        Ok(())
    }

    fn write(&self, config: &DecoderConfig, settings: &mut Map<String, Value>) {
        self.0.write(config, settings);
    }
}

/// Takes the rotation from the layers marked true.
pub(crate) fn set_unrotated(config: &mut DecoderConfig, layers: Vec<bool>) {
    match LayerPattern::from_list(layers) {
        LayerPattern::All => config.position_embedding = PositionEmbedding::None,
        layers => config.no_rope_layers = layers,
    }
}

/// Reads the window of a family whose layers all have the same: null means no window, and `absent`
/// is the value without a key.
pub(crate) fn read_of_all(fields: &Fields, config: &mut DecoderConfig, absent: Option<usize>) -> Result<(), HfError> {
    let size = if fields.has(SIZE) { fields.size(SIZE)? } else { absent };
    set(config, size, vec![size.is_some(); config.num_layers]);
    Ok(())
}

/// Writes the window of a family whose layers all have the same.
pub(crate) fn write_of_all(config: &DecoderConfig, settings: &mut Map<String, Value>) {
    settings.insert(SIZE.into(), json!(config.window_size.map(|left| left + 1)));
}

/// Reads the windows of a family that names the windowed layers: without `layer_types`, all layers
/// except each `pattern`-th. The default size is `size`, and null means no window.
pub(crate) fn read_pattern(
    fields: &Fields,
    config: &mut DecoderConfig,
    size: usize,
    pattern: usize,
) -> Result<(), HfError> {
    let usual = (1..=config.num_layers).map(|number| !number.is_multiple_of(pattern)).collect();
    read_layers(fields, config, size, usual)
}

/// Reads the windows of a family that names the windowed layers, which are those of `usual` without
/// `layer_types`. The default size is `size`, and null means no window.
pub(crate) fn read_layers(
    fields: &Fields,
    config: &mut DecoderConfig,
    size: usize,
    usual: Vec<bool>,
) -> Result<(), HfError> {
    let size = if fields.has(SIZE) { fields.size(SIZE)? } else { Some(size) };
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

/// The size in families with a switch `use_sliding_window`, which is `absent` without a key.
pub(crate) fn switched_size(fields: &Fields, absent: Option<usize>) -> Result<Option<usize>, HfError> {
    if fields.bool("use_sliding_window")? != Some(true) {
        // transformers writes 0 for Qwen 2 with experts.
        fields.ask("sliding_window");
        return Ok(None);
    }
    let size = if fields.has(SIZE) { fields.size(SIZE)? } else { absent };
    size.map(Some).ok_or_else(|| fields.missing("sliding_window", "an integer of at least 1"))
}

/// Reads a window in the layers that `layer_types` names, or from number `max_window_layers` on,
/// which is `absent` without a key.
pub(crate) fn read_upper_layers(
    fields: &Fields,
    config: &mut DecoderConfig,
    size: Option<usize>,
    absent: usize,
) -> Result<(), HfError> {
    let first = fields.count("max_window_layers");
    let layers = match layer_types(fields, config.num_layers)? {
        Some(layers) => layers,
        None => {
            let first = first?.unwrap_or(absent);
            (0..config.num_layers).map(|layer| size.is_some() && layer >= first).collect()
        }
    };
    set_switched(fields, config, size, layers)
}

/// Sets the window of a family with a switch. Layers that have none cannot be named as such with
/// one.
pub(crate) fn set_switched(
    fields: &Fields,
    config: &mut DecoderConfig,
    size: Option<usize>,
    layers: Vec<bool>,
) -> Result<(), HfError> {
    let expected = "full_attention in all layers, because no sliding_window is in use";
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
        settings.insert(SIZE.into(), json!(left + 1));
    }
}
