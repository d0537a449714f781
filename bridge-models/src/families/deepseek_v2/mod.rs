//! DeepSeek-V2: latent attention, a few dense layers, then experts behind a softmax router, which
//! may choose in groups, and experts that all tokens go through.

#[cfg(test)]
mod tests;

use super::deepseek_v3;
use super::deepseek_v3::config::{LatentSizes, SHARED, read_latent_rope};
use super::mixture::{ExpertFactor, FACTOR, FIRST_DENSE, FirstDense, SharedExperts, set_groups};
use super::prelude::*;

pub(super) static FAMILY: Family = Family {
    model_type: "deepseek_v2",
    architecture: "DeepseekV2ForCausalLM",
    settings: SETTINGS,
    weights: deepseek_v3::WEIGHTS,
    aliases: &[("num_experts", "n_routed_experts")],
    ..Family::USUAL
};

/// Settings; absent ones have the values of `DeepseekV2Config`.
const SETTINGS: &[Setting] = &[
    Setting::Rows(SIZES),
    positions(2048),
    Setting::Group(&LatentSizes { query: Some(1536), key_value: 512, rotated: 64, plain: 128, value: Some(128) }),
    size_or("moe_intermediate_size", |c| &mut experts(c).ffn_hidden_size, 1407),
    size_or("n_routed_experts", |c| &mut experts(c).num_experts, 64),
    size("num_experts_per_tok", |c| &mut experts(c).topk),
    Setting::Only("scoring_func", || json!("softmax")),
    Setting::Only("norm_topk_prob", || json!(false)),
    Setting::Only("moe_layer_freq", || json!(1)),
    Setting::Keys { read: read_router, write: write_router },
    Setting::Group(&ExpertFactor(FACTOR, 1.0)),
    Setting::Group(&SharedExperts(SHARED, Some(2))),
    Setting::Group(&FirstDense(FIRST_DENSE, 0)),
    Setting::Rows(BLOCKS),
    Setting::Rows(ATTENTION_BIAS),
    MLP_BIAS,
    rms_norm_epsilon(1e-6),
    tied_embeddings(false),
    Setting::Keys { read: |fields, c| read_latent_rope(fields, c, true, RopeForm::USUAL), write: rope::write },
    Setting::Unused(&["head_dim", "qk_head_dim"]),
];

const METHOD: &str = "topk_method";
/// Names of the choice among all experts, and among those of the best groups.
const METHODS: [&str; 2] = ["greedy", "group_limited_greedy"];

/// Weights of a token's experts are their shares of the softmax over all experts. The score of a
/// group is that of its best expert.
fn read_router(fields: &Fields, config: &mut DecoderConfig) -> Result<(), HfError> {
    let method = fields.string(METHOD)?.unwrap_or(METHODS[0]);
    let known = METHODS.contains(&method);
    fields.require(known, METHOD, &format!("\"{method}\""), &format!("{} or {}", METHODS[0], METHODS[1]))?;
    let sizes = [fields.size("n_group")?, fields.size("topk_group")?];
    let moe = experts(config);
    (moe.pre_softmax, moe.router_precision) = (true, Some(RouterDType::Fp32));
    if method == METHODS[1] {
        let absent = |key| fields.missing(key, "an integer of at least 1");
        let groups = sizes[0].ok_or_else(|| absent("n_group"))?;
        let chosen = sizes[1].ok_or_else(|| absent("topk_group"))?;
        set_groups(fields, config, "n_group", [groups, chosen, 1])?;
    }
    Ok(())
}

fn write_router(config: &DecoderConfig, settings: &mut Map<String, Value>) {
    let Some(moe) = &config.moe else { return };
    settings.insert(METHOD.into(), json!(METHODS[usize::from(moe.num_groups.is_some())]));
    settings.insert("n_group".into(), json!(moe.num_groups));
    settings.insert("topk_group".into(), json!(moe.group_topk));
}
