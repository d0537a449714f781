//! Gemma: a Llama with norms whose weights are stored minus one, and with an embedding that is
//! scaled by the root of the width.

pub(super) mod gguf;
#[cfg(test)]
mod tests;

use super::llama;
use super::prelude::*;
use crate::huggingface::fields::{activation, activation_name};

pub(super) static FAMILY: Family = Family {
    model_type: "gemma",
    architecture: "GemmaForCausalLM",
    settings: SETTINGS,
    weights: &[llama::WEIGHTS],
    ..Family::USUAL
};

/// Settings; absent ones have the values of `GemmaConfig`. Its successors share most rows.
const SETTINGS: &[Setting] = &[
    Setting::Rows(SIZES),
    Setting::KeyValueHeads(16),
    Setting::Keys { read: read_activation, write: write_activation },
    // Only transformers 4 reads this one.
    Setting::Only("hidden_activation", || json!("gelu_pytorch_tanh")),
    Setting::Rows(LAYERS),
    USUAL_SOFTMAX_SCALE,
    positions(8192),
    ROPE,
];

/// Settings of all generations.
pub(super) const LAYERS: &[Setting] = &[
    head_size(256),
    Setting::Always(|c| {
        c.norm.kind = Normalization::RmsNorm;
        c.norm.zero_centered_gamma = true;
        c.gated_linear_unit = true;
        // Rounded to float32, as the released models' factor is.
        c.embedding_multiplier = f64::from((c.hidden_size as f64).sqrt() as f32);
    }),
    initializer_range(0.02),
    rms_norm_epsilon(1e-6),
    Setting::Rows(ATTENTION_BIAS),
    Setting::Number("attention_dropout", |c| &mut c.attention_dropout, 0.0),
    tied_embeddings(true),
    Setting::Only("use_bidirectional_attention", || json!(false)),
];

/// Files of the first release say `gelu` and mean its approximation, as `GemmaConfig` knows.
fn read_activation(fields: &Fields, config: &mut DecoderConfig) -> Result<(), HfError> {
    let is_legacy = fields.string("hidden_act")? == Some("gelu");
    let found = activation(fields, "hidden_act", Activation::GeluTanh)?;
    config.activation = if is_legacy { Activation::GeluTanh } else { found };
    Ok(())
}

fn write_activation(config: &DecoderConfig, settings: &mut Map<String, Value>) {
    let name = match config.activation {
        Activation::Gelu => "gelu_python",
        Activation::GeluTanh => "gelu_pytorch_tanh",
        other => activation_name(other),
    };
    settings.insert("hidden_act".into(), json!(name));
}
