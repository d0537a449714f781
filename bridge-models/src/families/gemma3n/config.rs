//! Settings of Gemma 3n; absent ones have the values of `Gemma3nTextConfig`.

use crate::decoder::AltUpConfig;
use crate::families::gemma;
use crate::families::gemma4::config::{count, read_per_layer, write_per_layer};
use crate::families::prelude::*;
use crate::huggingface::rope::ByLayerType;

const FORM: ByLayerType = ByLayerType {
    full: RopeForm { theta: 1_000_000.0, original_length: OriginalLength::InTable, ..RopeForm::USUAL },
    local_theta: 10_000.0,
    local_key: Some("rope_local_base_freq"),
};

pub(super) const SETTINGS: &[Setting] = &[
    Setting::Rows(SIZES_BESIDE_MLP),
    Setting::KeyValueHeads(2),
    Setting::Keys { read: read_width, write: write_width },
    Setting::NamedActivation("hidden_activation", |c| &mut c.activation, "gelu_pytorch_tanh"),
    Setting::Rows(gemma::config::LAYERS),
    size_or("max_position_embeddings", |c| &mut c.max_position_embeddings, |_, _| Ok(32_768)),
    Setting::Always(|c| {
        (c.norm.zero_centered_gamma, c.residual.norms) = (false, NormPlacement::Sandwich);
        (c.qk_layernorm, c.v_l2_norm, c.softmax_scale) = (true, true, 1.0);
    }),
    Setting::Keys { read: |fields, c| windows::read_pattern(fields, c, 512, 5), write: windows::write_pattern },
    Setting::Group(&FORM),
    Setting::NumberOrNone("final_logit_softcapping", |c| &mut c.logit_softcap, Some(30.0)),
    Setting::Keys { read: read_per_layer, write: write_per_layer },
    Setting::Keys { read: read_streams, write: write_streams },
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

fn read_streams(fields: &Fields, config: &mut DecoderConfig) -> Result<(), HfError> {
    config.altup = Some(AltUpConfig {
        count: fields.size("altup_num_inputs")?.unwrap_or(4),
        active: count(fields, "altup_active_idx", 0)?,
        laurel_rank: fields.size("laurel_rank")?.unwrap_or(64),
    });
    config.num_kv_shared_layers = count(fields, "num_kv_shared_layers", 15)?;
    Ok(())
}

fn write_streams(config: &DecoderConfig, settings: &mut Map<String, Value>) {
    let streams = config.altup.unwrap_or(AltUpConfig { count: 1, active: 0, laurel_rank: 0 });
    for (key, size) in [
        ("altup_num_inputs", streams.count),
        ("altup_active_idx", streams.active),
        ("laurel_rank", streams.laurel_rank),
        ("num_kv_shared_layers", config.num_kv_shared_layers),
    ] {
        settings.insert(key.into(), json!(size));
    }
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
