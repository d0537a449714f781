//! Falcon-H1: Mamba-2 and attention side by side in each layer, a gated feed-forward block, and
//! factors on inputs and outputs of all of them.

#[cfg(test)]
mod tests;

use super::llama;
use super::mamba2::mamba;
use super::pairs::{self, MAMBA_SIZES};
use super::prelude::*;
use crate::decoder::BlockFactors;
use crate::huggingface::settings::{as_said, usual_softmax_scale};

pub(super) static FAMILY: Family = Family {
    model_type: "falcon_h1",
    architecture: "FalconH1ForCausalLM",
    settings: SETTINGS,
    weights: &[pairs::MIXER_WEIGHTS, pairs::FEED_FORWARD_WEIGHTS, llama::WEIGHTS],
    ..Family::USUAL
};

/// Settings; absent ones have the values of `FalconH1Config`.
const SETTINGS: &[Setting] = &[
    Setting::Rows(SIZES),
    Setting::KeyValueHeads(8),
    HEAD_SIZE,
    positions(8192),
    Setting::Keys {
        read: |_, config| {
            let mixers = vec![HybridBlock::MambaAttention; config.num_layers];
            pairs::set_layers(config, &mixers, |_| false);
            Ok(())
        },
        write: pairs::write_num_layers,
    },
    Setting::Rows(BLOCKS),
    Setting::Rows(ATTENTION_BIAS),
    MLP_BIAS,
    rms_norm_epsilon(1e-5),
    tied_embeddings(false),
    ROPE,
    Setting::Rows(MAMBA_SIZES),
    Setting::Keys { read: read_mamba, write: write_mamba },
    Setting::Number("lm_head_multiplier", |c| &mut c.logit_multiplier, 1.0),
    Setting::Number("embedding_multiplier", |c| &mut c.embedding_multiplier, 1.0),
    Setting::Keys { read: read_key_factor, write: write_key_factor },
    Setting::Number("attention_in_multiplier", |c| &mut factors(c).attention_input, 1.0),
    Setting::Number("attention_out_multiplier", |c| &mut factors(c).attention_output, 1.0),
    Setting::Number("ssm_in_multiplier", |c| &mut factors(c).mamba_input, 1.0),
    Setting::Number("ssm_out_multiplier", |c| &mut factors(c).mamba_output, 1.0),
    Setting::Keys { read: read_lists, write: write_lists },
    // transformers does not read these keys of published files.
    Setting::Unused(&["mamba_use_mlp", "mlp_expansion_factor"]),
];

fn factors(config: &mut DecoderConfig) -> &mut BlockFactors {
    &mut config.hybrid.get_or_insert_with(|| HybridConfig::new(Vec::new())).factors
}

const WIDTH: &str = "mamba_d_ssm";

/// Reads the width of the Mamba-2 block, for which null is a multiple of the stream's, its norm,
/// and the bias of its last projection.
fn read_mamba(fields: &Fields, config: &mut DecoderConfig) -> Result<(), HfError> {
    let expanded = pairs::expanded(fields, config)?;
    let usual = if fields.has(WIDTH) { expanded } else { 1024 };
    let inner = fields.size(WIDTH)?.unwrap_or(usual);
    pairs::read_head_size(fields, config, inner)?;
    let is_before = fields.bool("mamba_norm_before_gate")?.unwrap_or(true);
    let has_norm = fields.bool("mamba_rms_norm")?.unwrap_or(false);
    let out_bias = fields.bool("projectors_bias")?.unwrap_or(false);
    let mamba = mamba(config);
    (mamba.has_norm, mamba.norm_before_gate, mamba.out_bias) = (has_norm, has_norm && is_before, Some(out_bias));
    Ok(())
}

fn write_mamba(config: &DecoderConfig, settings: &mut Map<String, Value>) {
    pairs::write_head_size(config, settings);
    let Some(mamba) = config.hybrid.as_ref().map(|hybrid| hybrid.mamba) else { return };
    settings.insert(WIDTH.into(), json!(mamba.inner_size()));
    settings.insert("mamba_rms_norm".into(), json!(mamba.has_norm));
    settings.insert("mamba_norm_before_gate".into(), json!(mamba.norm_before_gate || !mamba.has_norm));
    settings.insert("projectors_bias".into(), json!(mamba.has_out_bias()));
}

const KEY_FACTOR: &str = "key_multiplier";

/// A factor on keys is one on scores.
fn read_key_factor(fields: &Fields, config: &mut DecoderConfig) -> Result<(), HfError> {
    let factor = fields.number(KEY_FACTOR)?.unwrap_or(1.0);
    config.softmax_scale = usual_softmax_scale(config) * factor;
    Ok(())
}

fn write_key_factor(config: &DecoderConfig, settings: &mut Map<String, Value>) {
    let usual = usual_softmax_scale(config);
    let factor = as_said(config.softmax_scale, |factor| usual * factor, config.softmax_scale / usual);
    settings.insert(KEY_FACTOR.into(), json!(factor));
}

/// The numbers of a list of this length; null is all ones.
fn list<const N: usize>(fields: &Fields, key: &str) -> Result<[f64; N], HfError> {
    let Some(found) = fields.get(key) else { return Ok([1.0; N]) };
    let numbers = fields.numbers(key)?;
    numbers.try_into().map_err(|_| fields.error(key, &found.to_string(), &format!("a list of {N} numbers")))
}

/// Reads the factors on parts of projections.
fn read_lists(fields: &Fields, config: &mut DecoderConfig) -> Result<(), HfError> {
    let ([gate, output], parts) = (list(fields, "mlp_multipliers")?, list(fields, "ssm_multipliers")?);
    let factors = factors(config);
    (factors.mlp_gate, factors.mlp_output, factors.mamba_parts) = (gate, output, parts);
    Ok(())
}

fn write_lists(config: &DecoderConfig, settings: &mut Map<String, Value>) {
    let Some(factors) = config.hybrid.as_ref().map(|hybrid| hybrid.factors) else { return };
    settings.insert("mlp_multipliers".into(), json!([factors.mlp_gate, factors.mlp_output]));
    settings.insert("ssm_multipliers".into(), json!(factors.mamba_parts));
}
