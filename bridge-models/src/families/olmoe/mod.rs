//! OLMoE: a Llama with experts in every layer, whose queries and keys have one norm each over all
//! heads.

#[cfg(test)]
mod tests;

use super::mixture::{self, norm_topk_prob};
use super::olmo::CLIP_QKV;
use super::prelude::*;
use super::{llama, qwen3};

pub(super) static FAMILY: Family = Family {
    model_type: "olmoe",
    architecture: "OlmoeForCausalLM",
    settings: SETTINGS,
    weights: &[qwen3::QK_NORMS, mixture::APART, mixture::STACKED, llama::WEIGHTS],
    aliases: &[("num_local_experts", "num_experts")],
    ..Family::USUAL
};

/// Settings; absent ones have the values of `OlmoeConfig`.
const SETTINGS: &[Setting] = &[
    Setting::Rows(SIZES),
    HEAD_SIZE,
    Setting::Rule(|fields, c| {
        let expected = "hidden_size / num_attention_heads: the family's norms of queries have hidden_size elements";
        let fits = c.kv_channels.checked_mul(c.num_attention_heads) == Some(c.hidden_size);
        fields.require(fits, "head_dim", &c.kv_channels.to_string(), expected)
    }),
    positions(4096),
    Setting::Always(|c| {
        c.qk_layernorm = true;
        c.qk_layernorm_scope = QkNormScope::Projection;
        experts(c).ffn_hidden_size = c.ffn_hidden_size;
    }),
    CLIP_QKV,
    size_or("num_experts", |c| &mut experts(c).num_experts, 64),
    size_or("num_experts_per_tok", |c| &mut experts(c).topk, 8),
    norm_topk_prob(false),
    Setting::Rows(BLOCKS),
    Setting::Rows(ATTENTION_BIAS),
    rms_norm_epsilon(1e-5),
    tied_embeddings(false),
    ROPE,
];
