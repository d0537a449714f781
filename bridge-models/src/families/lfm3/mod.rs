//! LFM3: an LFM2 with norms before and after blocks, a gate on each head's output, and windows in
//! some of the layers with attention.

#[cfg(test)]
mod tests;

use super::lfm2::{BLOCKS, short_conv};
use super::pairs::{self, MixerNames};
use super::prelude::*;
use super::{lfm2, llama};
use crate::huggingface::rope::ByLayerType;

pub(super) static FAMILY: Family = Family {
    model_type: "lfm3",
    architecture: "Lfm3ForCausalLM",
    settings: SETTINGS,
    weights: &[OWN, lfm2::MIXER_WEIGHTS, lfm2::FEED_FORWARD, pairs::MIXER_WEIGHTS, llama::WEIGHTS],
    module_names: &[(".self_attn.gate_proj.", ".self_attn.g_proj.")],
    aliases: &[("rms_norm_eps", "norm_eps")],
    ..Family::USUAL
};

const FORM: ByLayerType =
    ByLayerType { full: RopeForm { theta: 1e6, ..RopeForm::USUAL }, local_theta: 1e4, local_key: None };

/// Settings; absent ones have the values of `Lfm3Config`.
const SETTINGS: &[Setting] = &[
    Setting::Rows(SIZES),
    Setting::KeyValueHeads(4),
    Setting::Group(&HeadSizeOr(128)),
    positions(128_000),
    Setting::Keys { read: read_layers, write: write_layers },
    Setting::Keys { read: read_rope, write: |c, settings| rope::write_tables(c, settings, FORM) },
    Setting::Rows(BLOCKS),
    size_or("conv_L_cache", |c| &mut short_conv(c).kernel, 7),
    Setting::Rows(ATTENTION_BIAS),
    Setting::Number("attention_dropout", |c| &mut c.attention_dropout, 0.0),
    Setting::Flag("use_sandwich_norm", true, DecoderConfig::has_sandwich_norms, |c, on| {
        c.residual.norms = if on { NormPlacement::Sandwich } else { NormPlacement::Before }
    }),
    Setting::Flag(
        "use_attention_gate",
        true,
        |c| c.output_gate.is_some(),
        |c, on| c.output_gate = on.then_some(OutputGateForm::Head),
    ),
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

/// Names of parameters that LFM2 does not have, or calls otherwise.
const OWN: &[WeightRule] = &[
    half_layer!("post_norm.weight", "post_operator_norm.weight"),
    half_layer!("post_self_attention_layernorm.weight", "post_operator_norm.weight"),
    half_layer!("post_mlp_layernorm.weight", "post_ffn_norm.weight"),
    half_layer!("self_attention.q_layernorm.weight", "self_attn.q_norm.weight"),
    half_layer!("self_attention.k_layernorm.weight", "self_attn.k_norm.weight"),
    half_layer!("self_attention.linear_gate.weight", "self_attn.gate_proj.weight"),
    half_layer!("self_attention.linear_proj.weight", "self_attn.o_proj.weight"),
];
