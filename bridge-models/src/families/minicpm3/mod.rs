//! MiniCPM3: latent attention without experts, and factors on the embedding, on the outputs of
//! blocks and on logits.

#[cfg(test)]
mod tests;

use super::deepseek_v3::config::{LatentSizes, read_latent_rope};
use super::prelude::*;
use super::{deepseek_v3, llama};
use crate::huggingface::settings::as_said;

pub(super) static FAMILY: Family = Family {
    model_type: "minicpm3",
    architecture: "MiniCPM3ForCausalLM",
    settings: SETTINGS,
    weights: &[deepseek_v3::weights::LATENT_ATTENTION, llama::WEIGHTS],
    ..Family::USUAL
};

/// Settings; absent ones have the values of `MiniCPM3Config`.
const SETTINGS: &[Setting] = &[
    Setting::Rows(SIZES),
    Setting::KeyValueHeads(40),
    positions(32_768),
    Setting::Group(&LatentSizes { query: Some(768), key_value: 256, rotated: 32, plain: 64, value: None }),
    Setting::Rows(BLOCKS),
    initializer_range(0.1),
    Setting::Rows(ATTENTION_BIAS),
    MLP_BIAS,
    rms_norm_epsilon(1e-5),
    tied_embeddings(true),
    Setting::Keys { read: |fields, c| read_latent_rope(fields, c, false, RopeForm::USUAL), write: rope::write },
    Setting::Number("scale_emb", |c| &mut c.embedding_multiplier, 12.0),
    Setting::Keys { read: read_factors, write: write_factors },
    Setting::Unused(&["head_dim", "qk_head_dim"]),
];

/// Outputs of blocks are multiplied by `scale_depth` over the root of the number of layers, and
/// logits by `dim_model_base` over the hidden size. Null means a factor of one, for both.
fn read_factors(fields: &Fields, config: &mut DecoderConfig) -> Result<(), HfError> {
    let depth = if fields.has("scale_depth") { fields.number("scale_depth")? } else { Some(1.4) };
    config.residual.branch_multiplier = depth.map_or(1.0, |depth| depth / root_of_layers(config));
    let base = if fields.has("dim_model_base") { fields.size("dim_model_base")? } else { Some(256) };
    let width = config.hidden_size as f64;
    config.logit_multiplier = base.map_or(1.0, |base| 1.0 / (width / base as f64));
    Ok(())
}

fn root_of_layers(config: &DecoderConfig) -> f64 {
    (config.num_layers as f64).sqrt()
}

fn write_factors(config: &DecoderConfig, settings: &mut Map<String, Value>) {
    let (root, factor) = (root_of_layers(config), config.residual.branch_multiplier);
    settings.insert("scale_depth".into(), json!(as_said(factor, |depth| depth / root, factor * root)));
    // A base that is no integer changes when the export is read back, so that it is refused.
    let base = (config.logit_multiplier * config.hidden_size as f64).round().max(1.0) as usize;
    settings.insert("dim_model_base".into(), json!(base));
}
