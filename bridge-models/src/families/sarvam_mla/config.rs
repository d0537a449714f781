//! Settings of Sarvam 105B; absent ones have the values of `SarvamMLAConfig`.

use crate::families::deepseek_v3::config::{LatentSizes, PREDICTED_LAYERS, SHARED, read_rope, write_rope};
use crate::families::mixture::{FIRST_DENSE, FirstDense, SharedExperts, SigmoidRouter};
use crate::families::prelude::*;

pub(super) const SETTINGS: &[Setting] = &[
    Setting::Rows(SIZES),
    size_or("max_position_embeddings", |c| &mut c.max_position_embeddings, |_, _| Ok(4096)),
    Setting::Group(&LatentSizes { query: None, key_value: 512, rotated: 64, plain: 128, value: Some(128) }),
    size_or("moe_intermediate_size", |c| &mut experts(c).ffn_hidden_size, |_, _| Ok(2048)),
    size_or("n_routed_experts", |c| &mut experts(c).num_experts, |_, _| Ok(128)),
    size_or("num_experts_per_tok", |c| &mut experts(c).topk, |_, _| Ok(8)),
    Setting::Only("score_function", || json!("sigmoid")),
    Setting::Only("moe_router_enable_expert_bias", || json!(true)),
    Setting::Group(&ROUTER),
    Setting::Group(&SharedExperts(SHARED, Some(1))),
    Setting::Group(&FirstDense(FIRST_DENSE, 1)),
    PREDICTED_LAYERS,
    Setting::Rows(BLOCKS),
    Setting::Number("initializer_range", |c| &mut c.init_method_std, |_, _| Ok(0.006)),
    Setting::Rows(ATTENTION_BIAS),
    Setting::Number("rms_norm_eps", |c| &mut c.norm.epsilon, |_, _| Ok(1e-6)),
    Setting::Switch("tie_word_embeddings", |c| &mut c.share_embeddings_and_output_weights, false),
    Setting::Keys { read: read_rope, write: write_rope },
    Setting::Unused(&["head_dim", "q_head_dim", "qk_head_dim"]),
];

const ROUTER: SigmoidRouter = SigmoidRouter { factor: 2.5, ..SigmoidRouter::UNGROUPED };
