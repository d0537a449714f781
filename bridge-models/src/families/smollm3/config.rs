//! Settings of SmolLM3; absent ones have the values of `SmolLM3Config`.

use crate::families::prelude::*;

const FORM: RopeForm = RopeForm { theta: 2_000_000.0, ..RopeForm::USUAL };

pub(super) const SETTINGS: &[Setting] = &[
    Setting::Rows(SIZES),
    Setting::KeyValueHeads(4),
    HEAD_SIZE,
    size_or("max_position_embeddings", |c| &mut c.max_position_embeddings, |_, _| Ok(32_768)),
    Setting::Rows(BLOCKS),
    Setting::Rows(ATTENTION_BIAS),
    Setting::Switch("mlp_bias", |c| &mut c.mlp_bias, false),
    Setting::Number("rms_norm_eps", |c| &mut c.norm.epsilon, |_, _| Ok(1e-6)),
    Setting::Switch("tie_word_embeddings", |c| &mut c.share_embeddings_and_output_weights, true),
    Setting::Group(&FORM),
    Setting::Keys { read: read_no_rope, write: write_no_rope },
    Setting::Keys { read: read_window, write: windows::write_switched },
    Setting::Unused(&["no_rope_layer_interval"]),
];

/// `no_rope_layers` has 1 for layers with rotary embedding; without it every
/// `no_rope_layer_interval`-th layer has none.
fn read_no_rope(fields: &Fields, config: &mut DecoderConfig) -> Result<(), HfError> {
    let rotated: Vec<bool> = match fields.get("no_rope_layers") {
        Some(marks) => {
            let mark = |mark: &Value| mark.as_u64().filter(|mark| *mark <= 1).map(|mark| mark == 1);
            let marks_read: Option<Vec<bool>> = marks.as_array().and_then(|marks| marks.iter().map(mark).collect());
            // There may be more marks than layers.
            let rotated = marks_read.filter(|read| read.len() >= config.num_layers);
            let expected = format!("0 or 1 for each of {} layers", config.num_layers);
            rotated.ok_or_else(|| fields.error("no_rope_layers", &marks.to_string(), &expected))?
        }
        None => {
            let interval = fields.size("no_rope_layer_interval")?.unwrap_or(4);
            (1..=config.num_layers).map(|number| !number.is_multiple_of(interval)).collect()
        }
    };
    windows::set_unrotated(config, rotated.into_iter().take(config.num_layers).map(|rotated| !rotated).collect());
    Ok(())
}

fn write_no_rope(config: &DecoderConfig, settings: &mut Map<String, Value>) {
    let is_rotated =
        |layer| !config.no_rope_layers.includes(layer) && config.position_embedding != PositionEmbedding::None;
    let marks = (0..config.num_layers).map(|layer| u8::from(is_rotated(layer)));
    settings.insert("no_rope_layers".into(), json!(marks.collect::<Vec<_>>()));
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
