//! Bamba: Mamba-2 or attention with half-rotated heads in each layer, and a gated feed-forward
//! block.

#[cfg(test)]
mod tests;

use super::llama;
use super::pairs::{self, MAMBA_BLOCK};
use super::prelude::*;

pub(super) static FAMILY: Family = Family {
    model_type: "bamba",
    architecture: "BambaForCausalLM",
    settings: SETTINGS,
    weights: &[pairs::MIXER_WEIGHTS, pairs::FEED_FORWARD_WEIGHTS, llama::WEIGHTS],
    ..Family::USUAL
};

/// Settings; absent ones have the values of `BambaConfig`.
const SETTINGS: &[Setting] = &[
    Setting::Rows(SIZES),
    Setting::KeyValueHeads(8),
    HEAD_SIZE,
    positions(262_144),
    Setting::Keys { read: read_layers, write: write_layers },
    Setting::Rows(BLOCKS),
    Setting::Rows(ATTENTION_BIAS),
    MLP_BIAS,
    rms_norm_epsilon(1e-5),
    tied_embeddings(false),
    // transformers always has this share where the table of rotary settings says no other.
    Setting::Only("partial_rotary_factor", || json!(0.5)),
    Setting::Keys { read: |fields, c| rope::read(fields, c, ROPE), write: write_rope },
    MAMBA_BLOCK,
    // The first follows from the share of a head, and the recipe sets the loss.
    Setting::Unused(&["attn_rotary_emb", "z_loss_coefficient"]),
];

const ROPE: RopeForm = RopeForm { percent: Some(0.5), ..RopeForm::USUAL };

const WITH_ATTENTION: &str = "attn_layer_indices";

fn read_layers(fields: &Fields, config: &mut DecoderConfig) -> Result<(), HfError> {
    let mixers = pairs::numbered_mixers(fields, config, WITH_ATTENTION, HybridBlock::Mamba)?;
    let all_mamba = vec![HybridBlock::Mamba; config.num_layers];
    pairs::set_layers(config, &mixers.unwrap_or(all_mamba), |_| false);
    Ok(())
}

fn write_layers(config: &DecoderConfig, settings: &mut Map<String, Value>) {
    pairs::write_num_layers(config, settings);
    let layers = pairs::layers(config).into_iter().enumerate();
    let with_attention = layers.filter(|(_, [mixer, _])| *mixer == HybridBlock::Attention).map(|(layer, _)| layer);
    settings.insert(WITH_ATTENTION.into(), json!(with_attention.collect::<Vec<_>>()));
}

fn write_rope(config: &DecoderConfig, settings: &mut Map<String, Value>) {
    rope::write_with_percent(config, settings);
    settings.remove("partial_rotary_factor");
}
