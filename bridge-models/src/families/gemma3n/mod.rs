//! Gemma 3n, the language model: several residual streams of which a layer reads and writes one
//! (AltUp), a branch beside attention (LAuReL), sparse gates, and as in Gemma 4 keys and values
//! that layers share and vectors of each token for each layer.

#[cfg(test)]
mod tests;

use super::gemma4::config::{read_per_layer, write_per_layer};
use super::prelude::*;
use super::{gemma, gemma2, gemma3, gemma4, llama, qwen3};
use crate::decoder::AltUpConfig;

pub(super) static FAMILY: Family = Family {
    model_type: "gemma3n_text",
    architecture: "Gemma3nForCausalLM",
    settings: SETTINGS,
    weights: &[STREAMS, gemma4::weights::WEIGHTS, gemma2::NORMS, qwen3::QK_NORMS, llama::WEIGHTS],
    // Files have keys and values of layers that use those of others, too.
    buffers: gemma4::FAMILY.buffers,
    ..Family::USUAL
};

/// Settings; absent ones have the values of `Gemma3nTextConfig`.
const SETTINGS: &[Setting] = &[
    Setting::Rows(SIZES_BESIDE_MLP),
    Setting::KeyValueHeads(2),
    Setting::Keys { read: read_width, write: write_width },
    Setting::NamedActivation("hidden_activation", |c| &mut c.activation, "gelu_pytorch_tanh"),
    Setting::Rows(gemma::LAYERS),
    positions(32_768),
    Setting::Always(|c| {
        (c.norm.zero_centered_gamma, c.residual.norms) = (false, NormPlacement::Sandwich);
        (c.qk_layernorm, c.v_l2_norm, c.softmax_scale) = (true, true, 1.0);
    }),
    Setting::Keys { read: |fields, c| windows::read_pattern(fields, c, 512, 5), write: windows::write_pattern },
    Setting::Group(&gemma3::FORM),
    Setting::NumberOrNone("final_logit_softcapping", |c| &mut c.logit_softcap, Some(30.0)),
    Setting::Keys { read: read_per_layer, write: write_per_layer },
    size_or("altup_num_inputs", |c| &mut streams(c).count, 4),
    Setting::Count("altup_active_idx", |c| &mut streams(c).active, 0),
    size_or("laurel_rank", |c| &mut streams(c).laurel_rank, 64),
    Setting::Count("num_kv_shared_layers", |c| &mut c.num_kv_shared_layers, 15),
    Setting::Keys { read: read_sparsity, write: write_sparsity },
    // Training in transformers limits coefficients, which are far smaller.
    Setting::Only("altup_coef_clip", || json!(120.0)),
    Setting::Only("altup_correct_scale", || json!(true)),
];

const WIDTH: &str = "intermediate_size";

/// One width for all layers, or a list of them.
fn read_width(fields: &Fields, config: &mut DecoderConfig) -> Result<(), HfError> {
    let found = fields.get(WIDTH).cloned().unwrap_or(json!(16_384));
    let listed = found.as_array().cloned().unwrap_or_else(|| vec![found.clone(); config.num_layers]);
    let all_same = listed.len() == config.num_layers && listed.iter().all(|width| *width == listed[0]);
    let width = listed.first().filter(|_| all_same).and_then(Value::as_u64).and_then(|width| width.try_into().ok());
    let expected = "the same integer of at least 1 for all layers";
    config.ffn_hidden_size =
        width.filter(|width| *width > 0).ok_or_else(|| fields.error(WIDTH, &found.to_string(), expected))?;
    Ok(())
}

fn write_width(config: &DecoderConfig, settings: &mut Map<String, Value>) {
    settings.insert(WIDTH.into(), json!(vec![config.ffn_hidden_size; config.num_layers]));
}

/// The residual streams that every model of the family has.
fn streams(config: &mut DecoderConfig) -> &mut AltUpConfig {
    config.altup.get_or_insert(AltUpConfig { count: 1, active: 0, laurel_rank: 0 })
}

const SPARSITY: &str = "activation_sparsity_pattern";

/// Without the key the first ten layers of a larger model are sparse.
fn read_sparsity(fields: &Fields, config: &mut DecoderConfig) -> Result<(), HfError> {
    let sparse = if config.num_layers > 10 { 10 } else { 0 };
    let usual = || (0..config.num_layers).map(|layer| json!(if layer < sparse { 0.95 } else { 0.0 })).collect();
    let found = fields.get(SPARSITY).cloned().unwrap_or_else(|| Value::Array(usual()));
    let shares: Option<Vec<f64>> = found.as_array().and_then(|list| list.iter().map(Value::as_f64).collect());
    let is_share = |share: &f64| (0.0..1.0).contains(share);
    let shares = shares.filter(|shares| shares.len() == config.num_layers && shares.iter().all(is_share));
    let expected = || format!("a number in [0, 1) for each of {} layers", config.num_layers);
    let shares = shares.ok_or_else(|| fields.error(SPARSITY, &found.to_string(), &expected()))?;
    config.activation_sparsity = Some(shares).filter(|shares| shares.iter().any(|share| *share > 0.0));
    Ok(())
}

fn write_sparsity(config: &DecoderConfig, settings: &mut Map<String, Value>) {
    let shares = config.activation_sparsity.clone().unwrap_or_else(|| vec![0.0; config.num_layers]);
    settings.insert(SPARSITY.into(), json!(shares));
}

/// Names of the parameters that Gemma 4 does not have.
const STREAMS: &[WeightRule] = &[
    rule("embedding.altup_projections.{}.weight", &["model.altup_projections.{}.weight"]),
    rule("decoder.altup_unembed_projections.{}.weight", &["model.altup_unembed_projections.{}.weight"]),
    layer!("altup.router_norm.weight", "altup.router_norm.weight"),
    layer!("altup.modality_router.weight", "altup.modality_router.weight"),
    layer!("altup.prediction_coefs.weight", "altup.prediction_coefs.weight"),
    layer!("altup.correction_coefs.weight", "altup.correction_coefs.weight"),
    layer!("altup.correct_output_scale", "altup.correct_output_scale"),
    layer!("laurel.linear_left.weight", "laurel.linear_left.weight"),
    layer!("laurel.linear_right.weight", "laurel.linear_right.weight"),
    layer!("laurel.post_laurel_norm.weight", "laurel.post_laurel_norm.weight"),
];
