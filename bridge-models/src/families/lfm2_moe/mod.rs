//! LFM2 with experts in all layers but the first ones.

#[cfg(test)]
mod tests;

use super::lfm2::{BLOCKS, MIXERS, SIZES_AND_POSITIONS};
use super::prelude::*;
use super::{lfm2, llama, pairs};

pub(super) static FAMILY: Family = Family {
    model_type: "lfm2_moe",
    architecture: "Lfm2MoeForCausalLM",
    settings: SETTINGS,
    weights: &[APART, STACKED, lfm2::MIXER_WEIGHTS, lfm2::FEED_FORWARD, pairs::MIXER_WEIGHTS, llama::WEIGHTS],
    aliases: &[("tie_embedding", "tie_word_embeddings")],
    ..Family::USUAL
};

/// Settings; absent ones have the values of `Lfm2MoeConfig`.
const SETTINGS: &[Setting] = &[
    Setting::Rows(SIZES_AND_POSITIONS),
    size_or("intermediate_size", |c| &mut c.ffn_hidden_size, 7168),
    Setting::Keys { read: read_layers, write: write_layers },
    Setting::Rows(BLOCKS),
];

const NUM_DENSE: &str = "num_dense_layers";
const FACTOR: &str = "routed_scaling_factor";

/// Reads the mixers, which must be listed, and the experts of the layers after the first ones.
fn read_layers(fields: &Fields, config: &mut DecoderConfig) -> Result<(), HfError> {
    let mixers = pairs::listed_mixers(fields, config, MIXERS)?;
    let mixers = mixers.ok_or_else(|| fields.missing("layer_types", "conv or full_attention for each layer"))?;
    let dense = fields.count(NUM_DENSE)?.unwrap_or(2);
    let factor = fields.number(FACTOR)?.unwrap_or(1.0);
    let moe = experts(config);
    moe.num_experts = fields.size("num_experts")?.unwrap_or(32);
    moe.topk = fields.size("num_experts_per_tok")?.unwrap_or(4);
    moe.ffn_hidden_size = fields.size("moe_intermediate_size")?.unwrap_or(1792);
    (moe.score_function, moe.sum_epsilon) = (RouterScoreFunction::Sigmoid, 1e-6);
    moe.expert_bias = fields.bool("use_expert_bias")?.unwrap_or(true);
    moe.raw_scores = !fields.bool("norm_topk_prob")?.unwrap_or(true);
    moe.topk_scaling_factor = Some(factor).filter(|factor| *factor != 1.0);
    pairs::set_layers(config, &mixers, |layer| layer >= dense);
    pairs::rotates_attention_alone(config);
    Ok(())
}

fn write_layers(config: &DecoderConfig, settings: &mut Map<String, Value>) {
    pairs::write_num_layers(config, settings);
    pairs::write_mixers(config, settings, MIXERS);
    let layers = pairs::layers(config);
    let first = layers.iter().position(|[_, block]| *block == HybridBlock::Moe);
    settings.insert(NUM_DENSE.into(), json!(first.unwrap_or(layers.len())));
    let Some(moe) = &config.moe else { return };
    for (key, value) in [
        ("num_experts", json!(moe.num_experts)),
        ("num_experts_per_tok", json!(moe.topk)),
        ("moe_intermediate_size", json!(moe.ffn_hidden_size)),
        ("use_expert_bias", json!(moe.expert_bias)),
        ("norm_topk_prob", json!(!moe.raw_scores)),
        (FACTOR, json!(moe.topk_scaling_factor.unwrap_or(1.0))),
    ] {
        settings.insert(key.into(), value);
    }
}

/// Names of the router and of the experts.
const APART: &[WeightRule] = &[
    half_layer!("mlp.router.weight", "feed_forward.gate.weight"),
    half_layer!("mlp.router.expert_bias", "feed_forward.expert_bias"),
    half_layer!(
        "mlp.experts.local_experts.{}.linear_fc1.weight",
        "feed_forward.experts.{}.w1.weight",
        "feed_forward.experts.{}.w3.weight"
    )
    .fused(Fusion::GateUp),
    half_layer!("mlp.experts.local_experts.{}.linear_fc2.weight", "feed_forward.experts.{}.w2.weight"),
];

const STACKED: &[WeightRule] = &stacked([
    half_layer!("mlp.experts.local_experts.{}.linear_fc1.weight", "feed_forward.experts.gate_up_proj"),
    half_layer!("mlp.experts.local_experts.{}.linear_fc2.weight", "feed_forward.experts.down_proj"),
]);
