//! Settings of LFM3; absent ones have the values of `Lfm3Config`.

use crate::families::lfm2::config::{BLOCKS, short_conv};
use crate::families::pairs::{self, MixerNames};
use crate::families::prelude::*;
use crate::families::seed_oss::config::HEAD_SIZE_128;
use crate::huggingface::rope::ByLayerType;

const FORM: ByLayerType =
    ByLayerType { full: RopeForm { theta: 1e6, ..RopeForm::USUAL }, local_theta: 1e4, local_key: None };

pub(super) const SETTINGS: &[Setting] = &[
    Setting::Rows(SIZES),
    Setting::KeyValueHeads(4),
    HEAD_SIZE_128,
    size_or("max_position_embeddings", |c| &mut c.max_position_embeddings, |_, _| Ok(128_000)),
    Setting::Keys { read: read_layers, write: write_layers },
    Setting::Keys { read: read_rope, write: |c, settings| rope::write_tables(c, settings, FORM) },
    Setting::Rows(BLOCKS),
    size_or("conv_L_cache", |c| &mut short_conv(c).kernel, |_, _| Ok(7)),
    Setting::Rows(ATTENTION_BIAS),
    Setting::Number("attention_dropout", |c| &mut c.attention_dropout, |_, _| Ok(0.0)),
    Setting::Keys {
        read: |fields, c| {
            let has_norms = fields.bool("use_sandwich_norm")?.unwrap_or(true);
            c.residual.norms = if has_norms { NormPlacement::Sandwich } else { NormPlacement::Before };
            let has_gates = fields.bool("use_attention_gate")?.unwrap_or(true);
            c.output_gate = has_gates.then_some(OutputGateForm::Head);
            Ok(())
        },
        write: |c, settings| {
            settings.insert("use_sandwich_norm".into(), json!(c.has_sandwich_norms()));
            settings.insert("use_attention_gate".into(), json!(c.output_gate.is_some()));
        },
    },
];

const LAYER_TYPES: &str = "layer_types";
const CONV: &str = pairs::SHORT_CONV.1[0];
const NAMES: [&str; 2] = windows::LAYER_TYPES;
const MIXERS: MixerNames = &[pairs::SHORT_CONV, (HybridBlock::Attention, &NAMES)];

/// Reads the mixer of each layer, and the windows of those with sliding attention.
fn read_layers(fields: &Fields, config: &mut DecoderConfig) -> Result<(), HfError> {
    let usual = |layer: usize| match layer % 4 {
        2 => NAMES[0],
        0 if layer > 0 => NAMES[1],
        _ => CONV,
    };
    let usual: Vec<&str> = (0..config.num_layers).map(usual).collect();
    let usual = Map::from_iter([(LAYER_TYPES.to_owned(), json!(usual))]);
    let place = if fields.get(LAYER_TYPES).is_some() { *fields } else { Fields::new(&usual) };
    let mixers = pairs::listed_mixers(&place, config, MIXERS)?.unwrap_or_default();
    let types = place.get(LAYER_TYPES).and_then(Value::as_array).into_iter().flatten();
    let windowed: Vec<bool> = types.flat_map(|name| [name == NAMES[1], false]).collect();
    pairs::set_layers(config, &mixers, |_| false);
    let size = if fields.has(windows::SIZE) { fields.size(windows::SIZE)? } else { Some(256) };
    let is_known = size.is_some() || !windowed.contains(&true);
    fields.require(is_known, windows::SIZE, "null", "a size: layer_types names sliding_attention")?;
    windows::set(config, size, windowed);
    Ok(())
}

fn write_layers(config: &DecoderConfig, settings: &mut Map<String, Value>) {
    pairs::write_num_layers(config, settings);
    let name = |(layer, [mixer, _]): (usize, &[HybridBlock; 2])| match mixer {
        HybridBlock::ShortConv => CONV,
        _ => NAMES[usize::from(config.window(2 * layer).is_some())],
    };
    let names: Vec<&str> = pairs::layers(config).iter().enumerate().map(name).collect();
    settings.insert(LAYER_TYPES.into(), json!(names));
    if config.window_size.is_some() {
        windows::write_of_all(config, settings);
    }
}

/// Without tables half of the pairs of full layers turn.
fn read_rope(fields: &Fields, config: &mut DecoderConfig) -> Result<(), HfError> {
    let full = json!({ "rope_type": "proportional", "rope_theta": 1e6, "partial_rotary_factor": 0.5 });
    let usual = Map::from_iter([("rope_parameters".to_owned(), json!({ NAMES[0]: full, NAMES[1]: {} }))]);
    let place = if fields.get("rope_parameters").is_some() { *fields } else { Fields::new(&usual) };
    FORM.read(&place, config)?;
    pairs::rotates_attention_alone(config);
    Ok(())
}
