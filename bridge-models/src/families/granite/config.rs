//! Settings of Granite; absent ones have the values of `GraniteConfig`.

use crate::families::prelude::*;
use crate::huggingface::settings::as_said;

pub(super) const SETTINGS: &[Setting] =
    &[Setting::Rows(WITHOUT_MLP_BIAS), Setting::Switch("mlp_bias", |c| &mut c.mlp_bias, false)];

/// Settings but that of biases in the feed-forward block.
pub(crate) const WITHOUT_MLP_BIAS: &[Setting] = &[
    Setting::Rows(SIZES),
    HEAD_SIZE,
    size_or("max_position_embeddings", |c| &mut c.max_position_embeddings, |_, _| Ok(2048)),
    Setting::Rows(BLOCKS),
    Setting::Rows(ATTENTION_BIAS),
    Setting::Number("rms_norm_eps", |c| &mut c.norm.epsilon, |_, _| Ok(1e-6)),
    Setting::Switch("tie_word_embeddings", |c| &mut c.share_embeddings_and_output_weights, false),
    ROPE,
    Setting::Rows(FACTORS),
];

/// Factors on the embedding, on the outputs of blocks, on scores and on logits.
pub(crate) const FACTORS: &[Setting] = &[
    Setting::Number("embedding_multiplier", |c| &mut c.embedding_multiplier, |_, _| Ok(1.0)),
    Setting::Number("residual_multiplier", |c| &mut c.residual.branch_multiplier, |_, _| Ok(1.0)),
    Setting::Number("attention_multiplier", |c| &mut c.softmax_scale, |_, _| Ok(1.0)),
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
