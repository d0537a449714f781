//! Granite: a Llama with factors on the embedding, on the outputs of blocks, on scores and on
//! logits.

#[cfg(test)]
mod tests;

use super::llama;
use super::prelude::*;
use crate::huggingface::settings::as_said;

pub(super) static FAMILY: Family = Family {
    model_type: "granite",
    architecture: "GraniteForCausalLM",
    settings: SETTINGS,
    weights: &[llama::WEIGHTS],
    ..Family::USUAL
};

/// Settings; absent ones have the values of `GraniteConfig`.
const SETTINGS: &[Setting] = &[Setting::Rows(WITHOUT_MLP_BIAS), MLP_BIAS];

/// Settings but that of biases in the feed-forward block.
pub(super) const WITHOUT_MLP_BIAS: &[Setting] = &[
    Setting::Rows(SIZES),
    HEAD_SIZE,
    positions(2048),
    Setting::Rows(BLOCKS),
    Setting::Rows(ATTENTION_BIAS),
    rms_norm_epsilon(1e-6),
    tied_embeddings(false),
    ROPE,
    Setting::Rows(FACTORS),
];

/// Factors on the embedding, on the outputs of blocks, on scores and on logits.
pub(super) const FACTORS: &[Setting] = &[
    Setting::Number("embedding_multiplier", |c| &mut c.embedding_multiplier, 1.0),
    Setting::Number("residual_multiplier", |c| &mut c.residual.branch_multiplier, 1.0),
    Setting::Number("attention_multiplier", |c| &mut c.softmax_scale, 1.0),
    Setting::Keys { read: read_logits, write: write_logits },
];

/// Logits are divided by `logits_scaling`.
fn read_logits(fields: &Fields, config: &mut DecoderConfig) -> Result<(), HfError> {
    let divisor = fields.number("logits_scaling")?.unwrap_or(1.0);
    fields.require(divisor > 0.0, "logits_scaling", &divisor.to_string(), "a number above 0")?;
    config.logit_multiplier = 1.0 / divisor;
    Ok(())
}

fn write_logits(config: &DecoderConfig, settings: &mut Map<String, Value>) {
    settings.insert(
        "logits_scaling".into(),
        json!(as_said(config.logit_multiplier, |divisor| 1.0 / divisor, 1.0 / config.logit_multiplier)),
    );
}
