//! Mamba-2: every layer is a state space block.

#[cfg(test)]
mod tests;

use super::prelude::*;
use crate::decoder::MambaConfig;
use crate::huggingface::json::{from_number, number};

pub(super) static FAMILY: Family = Family {
    model_type: "mamba2",
    architecture: "Mamba2ForCausalLM",
    settings: SETTINGS,
    weights: &[WEIGHTS],
    prefix: "backbone.",
    buffers: &[],
    ..Family::USUAL
};

/// Settings; absent ones have the values of `Mamba2Config`. Hybrids share the rows of the state
/// space block.
const SETTINGS: &[Setting] = &[
    size("vocab_size", |c| &mut c.vocab_size),
    size("hidden_size", |c| &mut c.hidden_size),
    size("num_hidden_layers", |c| &mut c.num_layers),
    Setting::Always(|c| {
        c.norm.kind = Normalization::RmsNorm;
        c.hybrid = Some(HybridConfig::new(vec![HybridBlock::Mamba; c.num_layers]));
    }),
    size_or("state_size", |c| &mut mamba(c).state_size, 128),
    size_or("head_dim", |c| &mut mamba(c).head_size, 64),
    size_or("num_heads", |c| &mut mamba(c).num_heads, 128),
    Setting::Keys { read: read_expand, write: write_expand },
    size_or("chunk_size", |c| &mut mamba(c).chunk_size, 256),
    Setting::Rule(|fields, _| silu(fields, "hidden_act")),
    // transformers ignores these keys of the original implementation: it always has the gated norm,
    // and gates before it.
    Setting::Unused(&["norm_before_gate", "rms_norm"]),
    Setting::Rows(BLOCK),
    tied_embeddings(false),
    TIME_STEP_LIMIT,
    initializer_range(0.1),
];

/// Settings with the same names in all families with state space blocks.
pub(super) const BLOCK: &[Setting] = &[
    size_or("n_groups", |c| &mut mamba(c).num_groups, 8),
    size_or("conv_kernel", |c| &mut mamba(c).conv_kernel, 4),
    Setting::Switch("use_conv_bias", |c| &mut mamba(c).conv_bias, true),
    Setting::Switch("use_bias", |c| &mut mamba(c).proj_bias, false),
    Setting::Number("layer_norm_epsilon", |c| &mut c.norm.epsilon, 1e-5),
];

/// The sizes of the state space blocks.
pub(super) fn mamba(config: &mut DecoderConfig) -> &mut MambaConfig {
    &mut config.hybrid.get_or_insert_with(|| HybridConfig::new(Vec::new())).mamba
}

/// The non-linearity of the convolution and of the gate is part of their kernels.
pub(super) fn silu(fields: &Fields, key: &str) -> Result<(), HfError> {
    match fields.string(key)? {
        None | Some("silu" | "swish") => Ok(()),
        Some(other) => Err(fields.error(key, &format!("\"{other}\""), "silu: anything else is not implemented")),
    }
}

/// The width of the block is stored twice, and both values must agree.
fn read_expand(fields: &Fields, config: &mut DecoderConfig) -> Result<(), HfError> {
    let expand = fields.size("expand")?.unwrap_or(2);
    let (inner, hidden) = (mamba(config).inner_size(), config.hidden_size);
    let expected = format!("num_heads x head_dim ({inner}) over hidden_size ({hidden})");
    fields.require(expand.checked_mul(hidden) == Some(inner), "expand", &expand.to_string(), &expected)
}

fn write_expand(config: &DecoderConfig, settings: &mut Map<String, Value>) {
    let inner = config.hybrid.as_ref().map_or(0, |hybrid| hybrid.mamba.inner_size());
    settings.insert("expand".into(), json!(inner / config.hidden_size.max(1)));
}

/// The range of time steps.
pub(super) const TIME_STEP_LIMIT: Setting = Setting::Keys { read: read_time_steps, write: write_time_steps };

const TIME_STEPS: &str = "time_step_limit";

/// The range of time steps. Python's Infinity, or a number beyond the range of float32, means no
/// limit.
fn read_time_steps(fields: &Fields, config: &mut DecoderConfig) -> Result<(), HfError> {
    let Some(limits) = fields.get(TIME_STEPS) else { return Ok(()) };
    let wrong = || fields.error(TIME_STEPS, &limits.to_string(), "a least and a largest time step");
    let [least, largest] = limits.as_array().map(Vec::as_slice).ok_or_else(wrong)? else { return Err(wrong()) };
    let mamba = mamba(config);
    mamba.least_time_step = least.as_f64().filter(|step| *step >= 0.0).ok_or_else(wrong)?;
    mamba.largest_time_step = match largest {
        unlimited if unlimited.is_null() || number(unlimited) == Some(f64::INFINITY) => None,
        limited => Some(limited.as_f64().ok_or_else(wrong)?).filter(|step| *step < f64::from(f32::MAX)),
    };
    Ok(())
}

/// Writes nothing for the default range.
fn write_time_steps(config: &DecoderConfig, settings: &mut Map<String, Value>) {
    let Some(mamba) = config.hybrid.as_ref().map(|hybrid| hybrid.mamba) else { return };
    if mamba.least_time_step != 0.0 || mamba.largest_time_step.is_some() {
        let largest = from_number(mamba.largest_time_step.unwrap_or(f64::INFINITY));
        settings.insert(TIME_STEPS.into(), json!([mamba.least_time_step, largest]));
    }
}

/// Names of Mamba-2's parameters.
const WEIGHTS: &[WeightRule] = &[
    rule("embedding.word_embeddings.weight", &["backbone.embeddings.weight"]).fused(Fusion::Vocabulary),
    rule("decoder.layers.{}.norm.weight", &["backbone.layers.{}.norm.weight"]),
    rule("decoder.layers.{}.mixer.in_proj.weight", &["backbone.layers.{}.mixer.in_proj.weight"]),
    rule("decoder.layers.{}.mixer.in_proj.bias", &["backbone.layers.{}.mixer.in_proj.bias"]),
    rule("decoder.layers.{}.mixer.conv1d.weight", &["backbone.layers.{}.mixer.conv1d.weight"])
        .fused(Fusion::Convolution),
    rule("decoder.layers.{}.mixer.conv1d.bias", &["backbone.layers.{}.mixer.conv1d.bias"]),
    rule("decoder.layers.{}.mixer.A_log", &["backbone.layers.{}.mixer.A_log"]),
    rule("decoder.layers.{}.mixer.D", &["backbone.layers.{}.mixer.D"]),
    rule("decoder.layers.{}.mixer.dt_bias", &["backbone.layers.{}.mixer.dt_bias"]),
    rule("decoder.layers.{}.mixer.norm.weight", &["backbone.layers.{}.mixer.norm.weight"]),
    rule("decoder.layers.{}.mixer.out_proj.weight", &["backbone.layers.{}.mixer.out_proj.weight"]),
    rule("decoder.layers.{}.mixer.out_proj.bias", &["backbone.layers.{}.mixer.out_proj.bias"]),
    rule("decoder.final_layernorm.weight", &["backbone.norm_f.weight"]),
    rule("output_layer.weight", &["lm_head.weight"]).fused(Fusion::Vocabulary),
];
