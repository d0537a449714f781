//! LFM2: a short convolution between two gates, or attention with norms of queries and keys, in
//! each layer, and a gated feed-forward block.

#[cfg(test)]
mod tests;

use super::llama;
use super::pairs::{self, ATTENTION, MixerNames, SHORT_CONV};
use super::prelude::*;
use crate::decoder::ShortConvConfig;

pub(super) static FAMILY: Family = Family {
    model_type: "lfm2",
    architecture: "Lfm2ForCausalLM",
    settings: SETTINGS,
    weights: &[MIXER_WEIGHTS, FEED_FORWARD, pairs::MIXER_WEIGHTS, llama::WEIGHTS],
    aliases: &[("tie_embedding", "tie_word_embeddings")],
    ..Family::USUAL
};

/// Settings; absent ones have the values of `Lfm2Config`.
const SETTINGS: &[Setting] = &[
    Setting::Rows(SIZES_AND_POSITIONS),
    Setting::Keys { read: read_ffn_size, write: write_ffn_size },
    Setting::Keys {
        read: |fields, config| {
            let numbered = pairs::numbered_mixers(fields, config, "full_attn_idxs", HybridBlock::ShortConv)?;
            let mixers = pairs::listed_mixers(fields, config, MIXERS)?.or(numbered);
            let mixers = mixers.unwrap_or_else(|| vec![HybridBlock::Attention; config.num_layers]);
            pairs::set_layers(config, &mixers, |_| false);
            pairs::rotates_attention_alone(config);
            Ok(())
        },
        write: |config, settings| {
            pairs::write_num_layers(config, settings);
            pairs::write_mixers(config, settings, MIXERS);
        },
    },
    Setting::Rows(BLOCKS),
];

/// Sizes and positions.
pub(super) const SIZES_AND_POSITIONS: &[Setting] = &[
    Setting::Rows(SIZES_BESIDE_MLP),
    Setting::KeyValueHeads(8),
    HEAD_SIZE,
    positions(128_000),
    Setting::Group(&RopeForm { theta: 1e6, ..RopeForm::USUAL }),
];

/// Settings of the blocks. The layers are set before.
pub(super) const BLOCKS: &[Setting] = &[
    USUAL_SOFTMAX_SCALE,
    Setting::Always(|c| {
        c.norm.kind = Normalization::RmsNorm;
        (c.gated_linear_unit, c.activation) = (true, Activation::Silu);
        c.qk_layernorm = true;
    }),
    size_or("conv_L_cache", |c| &mut short_conv(c).kernel, 3),
    Setting::Switch("conv_bias", |c| &mut short_conv(c).bias, false),
    Setting::Number("norm_eps", |c| &mut c.norm.epsilon, 1e-5),
    initializer_range(0.02),
    tied_embeddings(true),
    // transformers does not read these keys of published files.
    Setting::Unused(&["block_dim", "block_norm_eps", "block_use_swiglu", "conv_dim", "conv_dim_out"]),
    Setting::Unused(&["num_heads", "use_pos_enc"]),
];

pub(super) const MIXERS: MixerNames = &[SHORT_CONV, ATTENTION];

pub(super) fn short_conv(config: &mut DecoderConfig) -> &mut ShortConvConfig {
    &mut config.hybrid.get_or_insert_with(|| HybridConfig::new(Vec::new())).short_conv
}

/// Reads the width of the feed-forward block, which is two thirds of the file's number, times a
/// factor and rounded up to a multiple, unless a switch is off.
fn read_ffn_size(fields: &Fields, config: &mut DecoderConfig) -> Result<(), HfError> {
    let size = fields.size("intermediate_size")?;
    let size = fields.size("block_ff_dim")?.or(size).unwrap_or(12_288);
    let key = "block_ffn_dim_multiplier";
    let factor = if fields.has(key) { fields.number(key)? } else { Some(1.0) };
    let multiple = fields.size("block_multiple_of")?.unwrap_or(256);
    config.ffn_hidden_size = match (fields.bool("block_auto_adjust_ff_dim")?.unwrap_or(true), factor) {
        (false, _) => size,
        (true, None) => (2.0 * size as f64 / 3.0) as usize,
        (true, Some(factor)) => {
            let size = (factor * (2.0 * size as f64 / 3.0).trunc()) as usize;
            size.div_ceil(multiple).saturating_mul(multiple)
        }
    };
    Ok(())
}

fn write_ffn_size(config: &DecoderConfig, settings: &mut Map<String, Value>) {
    settings.extend(["intermediate_size", "block_ff_dim"].map(|key| (key.into(), json!(config.ffn_hidden_size))));
    settings.insert("block_auto_adjust_ff_dim".into(), json!(false));
}

/// Names of mixers that differ from those of other hybrids.
pub(super) const MIXER_WEIGHTS: &[WeightRule] = &[
    half_layer!("norm.weight", "operator_norm.weight"),
    half_layer!("input_layernorm.weight", "operator_norm.weight"),
    half_layer!("mixer.in_proj.weight", "conv.in_proj.weight"),
    half_layer!("mixer.in_proj.bias", "conv.in_proj.bias"),
    half_layer!("mixer.conv.weight", "conv.conv.weight").fused(Fusion::Convolution),
    half_layer!("mixer.conv.bias", "conv.conv.bias"),
    half_layer!("mixer.out_proj.weight", "conv.out_proj.weight"),
    half_layer!("mixer.out_proj.bias", "conv.out_proj.bias"),
    half_layer!("self_attention.q_layernorm.weight", "self_attn.q_layernorm.weight"),
    half_layer!("self_attention.k_layernorm.weight", "self_attn.k_layernorm.weight"),
    half_layer!("self_attention.linear_proj.weight", "self_attn.out_proj.weight"),
];

pub(super) const FEED_FORWARD: &[WeightRule] = &[
    half_layer!("pre_mlp_layernorm.weight", "ffn_norm.weight"),
    half_layer!("mlp.linear_fc1.weight", "feed_forward.w1.weight", "feed_forward.w3.weight").fused(Fusion::GateUp),
    half_layer!("mlp.linear_fc2.weight", "feed_forward.w2.weight"),
    rule("decoder.final_layernorm.weight", &["model.embedding_norm.weight"]),
];
