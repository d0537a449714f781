//! Settings of LFM2 with experts; absent ones have the values of `Lfm2MoeConfig`.

use crate::families::lfm2::config::{BLOCKS, MIXERS, SIZES_AND_POSITIONS};
use crate::families::pairs;
use crate::families::prelude::*;

pub(super) const SETTINGS: &[Setting] = &[
    Setting::Rows(SIZES_AND_POSITIONS),
    size_or("intermediate_size", |c| &mut c.ffn_hidden_size, |_, _| Ok(7168)),
    Setting::Keys { read: read_layers, write: write_layers },
    Setting::Rows(BLOCKS),
];

const NUM_DENSE: &str = "num_dense_layers";
const FACTOR: &str = "routed_scaling_factor";

/// Reads the mixers, which must be listed, and the experts of the layers after the first ones.
fn read_layers(fields: &Fields, config: &mut DecoderConfig) -> Result<(), HfError> {
    let mixers = pairs::listed_mixers(fields, config, MIXERS)?;
    let mixers =
        mixers.ok_or_else(|| fields.error("layer_types", "no value", "conv or full_attention for each layer"))?;
    let dense = fields.get(NUM_DENSE).map_or(Some(2), Value::as_u64);
    let dense = dense.ok_or_else(|| fields.error(NUM_DENSE, "something else", "an integer of at least 0"))?;
    let factor = fields.number(FACTOR)?.unwrap_or(1.0);
    let moe = experts(config);
    moe.num_experts = fields.size("num_experts")?.unwrap_or(32);
    moe.topk = fields.size("num_experts_per_tok")?.unwrap_or(4);
    moe.ffn_hidden_size = fields.size("moe_intermediate_size")?.unwrap_or(1792);
    (moe.score_function, moe.sum_epsilon) = (RouterScoreFunction::Sigmoid, 1e-6);
    moe.expert_bias = fields.bool("use_expert_bias")?.unwrap_or(true);
    moe.raw_scores = !fields.bool("norm_topk_prob")?.unwrap_or(true);
    moe.topk_scaling_factor = Some(factor).filter(|factor| *factor != 1.0);
    pairs::set_layers(config, &mixers, |layer| layer as u64 >= dense);
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
