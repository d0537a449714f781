//! Gemma 2: norms before and after blocks, capped scores and logits, and a window in every other
//! layer.

#[cfg(test)]
mod tests;

use super::prelude::*;
use super::{gemma, llama};
use crate::huggingface::settings::as_said;

pub(super) static FAMILY: Family = Family {
    model_type: "gemma2",
    architecture: "Gemma2ForCausalLM",
    settings: SETTINGS,
    weights: &[NORMS, llama::WEIGHTS],
    ..Family::USUAL
};

/// Settings; absent ones have the values of `Gemma2Config`. Gemma 3 shares most rows.
const SETTINGS: &[Setting] = &[Setting::Rows(CAPPED), Setting::Always(|c| c.residual.norms = NormPlacement::Sandwich)];

/// Settings of a model with caps and with a window in every other layer, but for the place of its
/// norms.
pub(super) const CAPPED: &[Setting] = &[
    Setting::Rows(SIZES),
    Setting::Rows(LAYERS),
    positions(8192),
    ROPE,
    Setting::Keys { read: |fields, c| windows::read_pattern(fields, c, 4096, 2), write: windows::write_pattern },
    Setting::NumberOrNone("final_logit_softcapping", |c| &mut c.logit_softcap, Some(30.0)),
    // Gemma 3 has its key too, but transformers caps no scores there.
    Setting::NumberOrNone("attn_logit_softcapping", |c| &mut c.attention_softcap, Some(50.0)),
];

/// Settings of Gemma 3 too.
pub(super) const LAYERS: &[Setting] = &[
    Setting::KeyValueHeads(4),
    Setting::NamedActivation("hidden_activation", |c| &mut c.activation, "gelu_pytorch_tanh"),
    Setting::Rows(gemma::LAYERS),
    Setting::Keys { read: |fields, c| read_scale(fields, c, 256.0), write: write_scale },
];

/// Scores are divided by the square root of `query_pre_attn_scalar`, which is `absent` without a
/// key.
pub(super) fn read_scale(fields: &Fields, config: &mut DecoderConfig, absent: f64) -> Result<(), HfError> {
    let key = "query_pre_attn_scalar";
    let size = fields.number(key)?.unwrap_or(absent);
    fields.require(size > 0.0, key, &size.to_string(), "a number above 0")?;
    config.softmax_scale = scale(size);
    Ok(())
}

fn scale(size: f64) -> f64 {
    1.0 / size.sqrt()
}

/// Writes the divisor of scores.
pub(super) fn write_scale(config: &DecoderConfig, settings: &mut Map<String, Value>) {
    let size = as_said(config.softmax_scale, scale, config.softmax_scale.powi(-2));
    let is_whole = size.fract() == 0.0 && size < 1e15;
    let value = if is_whole { json!(size as u64) } else { json!(size) };
    settings.insert("query_pre_attn_scalar".into(), value);
}

/// Names of the norms of Gemma's layers.
pub(super) const NORMS: &[WeightRule] = &[
    layer!("post_self_attention_layernorm.weight", "post_attention_layernorm.weight"),
    layer!("pre_mlp_layernorm.weight", "pre_feedforward_layernorm.weight"),
    layer!("post_mlp_layernorm.weight", "post_feedforward_layernorm.weight"),
];
