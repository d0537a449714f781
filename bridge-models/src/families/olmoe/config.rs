//! Settings of OLMoE; absent ones have the values of `OlmoeConfig`.

use crate::families::mixture::NORM_TOPK_PROB;
use crate::families::olmo::config::CLIP_QKV;
use crate::families::prelude::*;

pub(super) const SETTINGS: &[Setting] = &[
    Setting::Rows(SIZES),
    HEAD_SIZE,
    Setting::Rule(|fields, c| {
        let expected = "hidden_size / num_attention_heads: the family's norms of queries have hidden_size elements";
        let fits = c.kv_channels.checked_mul(c.num_attention_heads) == Some(c.hidden_size);
        fields.require(fits, "head_dim", &c.kv_channels.to_string(), expected)
    }),
    size_or("max_position_embeddings", |c| &mut c.max_position_embeddings, |_, _| Ok(4096)),
    Setting::Always(|c| {
        c.qk_layernorm = true;
        c.qk_layernorm_scope = QkNormScope::Projection;
        experts(c).ffn_hidden_size = c.ffn_hidden_size;
    }),
    CLIP_QKV,
    size_or("num_experts", |c| &mut experts(c).num_experts, |_, _| Ok(64)),
    size_or("num_experts_per_tok", |c| &mut experts(c).topk, |_, _| Ok(8)),
    NORM_TOPK_PROB,
    Setting::Rows(BLOCKS),
    Setting::Rows(ATTENTION_BIAS),
    Setting::Number("rms_norm_eps", |c| &mut c.norm.epsilon, |_, _| Ok(1e-5)),
    Setting::Switch("tie_word_embeddings", |c| &mut c.share_embeddings_and_output_weights, false),
    ROPE,
];
