//! Mistral 4: latent attention with YaRN, whose queries grow with the position, and experts behind
//! a softmax router, with one that all tokens go through.

#[cfg(test)]
mod tests;

use super::deepseek_v3::config::{LatentSizes, SHARED, set_latent_rope};
use super::ministral3::{read_query_scale, write_positions};
use super::mixture::{self, ExpertFactor, FACTOR, FIRST_DENSE, FirstDense, SharedExperts, set_groups};
use super::prelude::*;
use super::{deepseek_v3, llama};

pub(super) static FAMILY: Family = Family {
    model_type: "mistral4",
    architecture: "Mistral4ForCausalLM",
    settings: SETTINGS,
    weights: &[deepseek_v3::weights::LATENT_ATTENTION, mixture::SHARED, mixture::STACKED, llama::WEIGHTS],
    aliases: &[("num_local_experts", "n_routed_experts")],
    ..Family::USUAL
};

/// Settings; absent ones have the values of `Mistral4Config`.
const SETTINGS: &[Setting] = &[
    Setting::Rows(SIZES),
    positions(1_048_576),
    Setting::Group(&LatentSizes { query: Some(1024), key_value: 256, rotated: 64, plain: 64, value: Some(128) }),
    size_or("moe_intermediate_size", |c| &mut experts(c).ffn_hidden_size, 2048),
    size_or("n_routed_experts", |c| &mut experts(c).num_experts, 128),
    size_or("num_experts_per_tok", |c| &mut experts(c).topk, 4),
    Setting::Keys { read: read_router, write: write_router },
    Setting::Group(&ExpertFactor(FACTOR, 1.0)),
    Setting::Group(&SharedExperts(SHARED, Some(1))),
    Setting::Group(&FirstDense(FIRST_DENSE, 0)),
    Setting::Rows(BLOCKS),
    Setting::Rows(ATTENTION_BIAS),
    rms_norm_epsilon(1e-6),
    tied_embeddings(false),
    Setting::Keys { read: read_rope, write: write_rope },
    Setting::Unused(&["head_dim", "qk_head_dim"]),
];

/// The router. If the weights of a token's experts sum to one, they are the softmax over the chosen
/// experts. Groups are compared by the probabilities of their best two.
fn read_router(fields: &Fields, config: &mut DecoderConfig) -> Result<(), HfError> {
    let [groups, chosen] = [fields.size("n_group")?.unwrap_or(1), fields.size("topk_group")?.unwrap_or(1)];
    let is_normalized = fields.bool("norm_topk_prob")?.unwrap_or(true);
    let moe = experts(config);
    (moe.router_precision, moe.pre_softmax) = (Some(RouterDType::Fp32), !is_normalized);
    set_groups(fields, config, "n_group", [groups, chosen, 2])
}

fn write_router(config: &DecoderConfig, settings: &mut Map<String, Value>) {
    let Some(moe) = &config.moe else { return };
    settings.insert("n_group".into(), json!(moe.num_groups.unwrap_or(1)));
    settings.insert("topk_group".into(), json!(moe.group_topk.unwrap_or(1)));
    settings.insert("norm_topk_prob".into(), json!(!moe.pre_softmax));
}

const SHARE: &str = "partial_rotary_factor";

/// Share of a head that is rotated, which the sizes say too.
fn rotated_share(config: &DecoderConfig) -> f64 {
    config.rotary_head() as f64 / config.kv_channels as f64
}

/// The rotated part of a head, and the factor on queries.
fn read_rope(fields: &Fields, config: &mut DecoderConfig) -> Result<(), HfError> {
    // A base beside it says nothing.
    let usual = json!({
        "rope_type": "yarn",
        "rope_theta": 10_000.0,
        "partial_rotary_factor": rotated_share(config),
        "factor": 128.0,
        "original_max_position_embeddings": 8192,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "mscale_all_dim": 1.0,
        "mscale": 1.0,
        "llama_4_scaling_beta": 0.1,
    });
    let usual = usual.as_object().map(|usual| Fields::from_table("rope_parameters.", usual));
    let table = rope::table(fields)?.or(usual);
    let form = RopeForm { percent: Some(rotated_share(config)), ..RopeForm::USUAL };
    let rope = rope::read_table(fields, table.as_ref(), config.max_position_embeddings, form)?;
    let (rotated, found) = (config.rotary_head(), rope.rotary_size(config.kv_channels));
    let expected = format!("a share of {rotated} elements, which qk_rope_head_dim says");
    fields.require(found == rotated, SHARE, &format!("{} ({found} elements)", rope.percent), &expected)?;
    let interleaved = fields.bool("rope_interleave")?.unwrap_or(true);
    set_latent_rope(fields, config, table.as_ref(), RopeConfig { interleaved, percent: 1.0, ..rope })?;
    read_query_scale(table.as_ref(), config)
}

fn write_rope(config: &DecoderConfig, settings: &mut Map<String, Value>) {
    write_positions(config, settings);
    if let PositionEmbedding::Rope(rope) = &config.position_embedding {
        settings.insert("rope_interleave".into(), json!(rope.interleaved));
        settings["rope_parameters"][SHARE] = json!(rotated_share(config));
    }
}
