//! SmolLM3: a Llama of which every fourth layer has no rotary embedding.

#[cfg(test)]
mod tests;

use super::llama;
use super::prelude::*;

pub(super) static FAMILY: Family = Family {
    model_type: "smollm3",
    architecture: "SmolLM3ForCausalLM",
    settings: SETTINGS,
    weights: &[llama::WEIGHTS],
    ..Family::USUAL
};

/// Settings; absent ones have the values of `SmolLM3Config`.
const SETTINGS: &[Setting] = &[
    Setting::Rows(SIZES),
    Setting::KeyValueHeads(4),
    HEAD_SIZE,
    positions(32_768),
    Setting::Rows(BLOCKS),
    Setting::Rows(ATTENTION_BIAS),
    MLP_BIAS,
    rms_norm_epsilon(1e-6),
    tied_embeddings(true),
    Setting::Group(&RopeForm { theta: 2_000_000.0, ..RopeForm::USUAL }),
    Setting::Keys { read: read_no_rope, write: write_no_rope },
    Setting::Keys { read: read_window, write: windows::write_switched },
    Setting::Unused(&["no_rope_layer_interval"]),
];

const ROTATED: &str = "no_rope_layers";

/// Reads the layers with rotary embedding, which `no_rope_layers` marks with 1; without it every
/// `no_rope_layer_interval`-th layer has none.
pub(super) fn read_no_rope(fields: &Fields, config: &mut DecoderConfig) -> Result<(), HfError> {
    let layers = config.num_layers;
    let without = match fields.get(ROTATED).filter(|marks| **marks != json!([])) {
        Some(marks) => {
            let mark = |mark: &Value| mark.as_u64().filter(|mark| *mark <= 1).map(|mark| mark == 0);
            // There may be more marks than layers.
            let read = marks.as_array().and_then(|marks| marks.iter().take(layers).map(mark).collect());
            let expected = format!("0 or 1 for each of {layers} layers");
            let without = read.filter(|read: &Vec<bool>| read.len() == layers);
            without.ok_or_else(|| fields.error(ROTATED, &marks.to_string(), &expected))?
        }
        None => {
            let interval = fields.size("no_rope_layer_interval")?.unwrap_or(4);
            (1..=layers).map(|number| number.is_multiple_of(interval)).collect()
        }
    };
    windows::set_unrotated(config, without);
    Ok(())
}

pub(super) fn write_no_rope(config: &DecoderConfig, settings: &mut Map<String, Value>) {
    let marks: Vec<u8> = (0..config.num_layers).map(|layer| u8::from(config.rotates(layer))).collect();
    settings.insert(ROTATED.into(), json!(marks));
}

/// A window in the layers that `layer_types` names, or in those without rotary embedding.
fn read_window(fields: &Fields, config: &mut DecoderConfig) -> Result<(), HfError> {
    let size = windows::switched_size(fields, None)?;
    let usual = |config: &DecoderConfig| {
        let is_rotated = config.position_embedding != PositionEmbedding::None;
        let is_windowed = |layer| size.is_some() && (!is_rotated || config.no_rope_layers.includes(layer));
        (0..config.num_layers).map(is_windowed).collect()
    };
    let layers = windows::layer_types(fields, config.num_layers)?.unwrap_or_else(|| usual(config));
    windows::set_switched(fields, config, size, layers)
}
