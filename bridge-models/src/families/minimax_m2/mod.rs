//! MiniMax-M2: attention with one norm of queries and one of keys over all heads, of which a part
//! is rotated, and experts behind a sigmoid router in every layer. Files call the experts as
//! Mixtral's do.

#[cfg(test)]
mod tests;

use super::mixture::{self, sigmoid_router};
use super::prelude::*;
use super::{llama, mixtral, qwen3};

pub(super) static FAMILY: Family = Family {
    model_type: "minimax_m2",
    architecture: "MiniMaxM2ForCausalLM",
    settings: SETTINGS,
    weights: &[BIAS, mixtral::APART, qwen3::QK_NORMS, mixture::STACKED, llama::WEIGHTS],
    module_names: &[(".block_sparse_moe.", ".mlp.")],
    aliases: &[("num_experts", "num_local_experts")],
    ..Family::USUAL
};

/// Settings; absent ones have the values of `MiniMaxM2Config`.
const SETTINGS: &[Setting] = &[
    Setting::Rows(SIZES),
    Setting::KeyValueHeads(8),
    head_size(128),
    positions(196_608),
    Setting::Always(|c| {
        c.qk_layernorm = true;
        c.qk_layernorm_scope = QkNormScope::Projection;
        sigmoid_router(c).ffn_hidden_size = c.ffn_hidden_size;
    }),
    size_or("num_local_experts", |c| &mut experts(c).num_experts, 256),
    size_or("num_experts_per_tok", |c| &mut experts(c).topk, 8),
    Setting::Only("router_jitter_noise", || json!(0.0)),
    Setting::Rows(BLOCKS),
    rms_norm_epsilon(1e-6),
    tied_embeddings(false),
    Setting::Keys { read: read_rope, write: rope::write_with_percent },
    // transformers ignores these keys of published files; other programs compute something else
    // for other values.
    Setting::Only("scoring_func", || json!("sigmoid")),
    Setting::Only("use_routing_bias", || json!(true)),
    Setting::Only("use_qk_norm", || json!(true)),
    Setting::Only("qk_norm_type", || json!("per_layer")),
    Setting::Only("shared_intermediate_size", || json!(0)),
    Setting::Rule(|fields, _| match fields.get("attn_type_list") {
        Some(Value::Array(types)) if types.iter().all(|full| *full == 1) => Ok(()),
        Some(found) => Err(fields.error("attn_type_list", &found.to_string(), "1 (full attention) for each layer")),
        None => Ok(()),
    }),
];

/// Published files have the number of rotated elements, `rotary_dim`, instead of a share.
pub(super) fn read_rope(fields: &Fields, config: &mut DecoderConfig) -> Result<(), HfError> {
    let rotated = fields.size("rotary_dim")?;
    let share = rotated.map_or(1.0, |rotated| rotated as f64 / config.kv_channels as f64);
    rope::read(fields, config, RopeForm { theta: 5_000_000.0, percent: Some(share), ..RopeForm::USUAL })
}

/// Names of the bias in the choice of experts, in files and in the state of a module.
const BIAS: &[WeightRule] = &[
    layer!("mlp.router.expert_bias", "block_sparse_moe.e_score_correction_bias"),
    layer!("mlp.router.expert_bias", "mlp.e_score_correction_bias").stacked(),
];
