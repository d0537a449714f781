//! Settings of Ling 2.0; absent ones have the values of its `BailingMoeV2Config`.

use crate::families::deepseek_v3::config::PREDICTED_LAYERS;
use crate::families::mixture::{FIRST_DENSE, FirstDense, SharedExperts, SigmoidRouter};
use crate::families::prelude::*;

pub(super) const SETTINGS: &[Setting] = &[
    Setting::Rows(SIZES),
    Setting::KeyValueHeads(4),
    size_or("head_dim", |c| &mut c.kv_channels, |_, _| Ok(128)),
    size_or("max_position_embeddings", |c| &mut c.max_position_embeddings, |_, _| Ok(32_768)),
    size_or("moe_intermediate_size", |c| &mut experts(c).ffn_hidden_size, |_, _| Ok(512)),
    size_or("num_experts", |c| &mut experts(c).num_experts, |_, _| Ok(256)),
    size_or("num_experts_per_tok", |c| &mut experts(c).topk, |_, _| Ok(8)),
    Setting::Keys { read: read_router, write: |c, settings| ROUTER.write(c, settings) },
    Setting::Group(&SharedExperts("num_shared_experts", Some(1))),
    Setting::Group(&FirstDense(FIRST_DENSE, 1)),
    PREDICTED_LAYERS,
    Setting::Rows(BLOCKS),
    Setting::Switch("use_qkv_bias", |c| &mut c.qkv_bias, false),
    Setting::Switch("use_bias", |c| &mut c.proj_bias, false),
    Setting::Switch("use_qk_norm", |c| &mut c.qk_layernorm, true),
    Setting::Number("rms_norm_eps", |c| &mut c.norm.epsilon, |_, _| Ok(1e-6)),
    Setting::Switch("tie_word_embeddings", |c| &mut c.share_embeddings_and_output_weights, false),
    Setting::Group(&RopeForm { theta: 600_000.0, percent: Some(1.0), ..RopeForm::USUAL }),
    Setting::Only("score_function", || json!("sigmoid")),
    Setting::Only("moe_router_enable_expert_bias", || json!(true)),
    Setting::Only("use_rmsnorm", || json!(true)),
    Setting::Only("norm_head", || json!(false)),
    Setting::Only("norm_softmax", || json!(false)),
    Setting::Only("use_sliding_window", || json!(false)),
    Setting::Unused(&["max_window_layers", "moe_shared_expert_intermediate_size", "router_dtype", "sliding_window"]),
];

const ROUTER: SigmoidRouter = SigmoidRouter { groups: 8, chosen: 4, ..SigmoidRouter::UNGROUPED };

/// Weights of a token's experts sum to one, but that of a single expert is its score.
fn read_router(fields: &Fields, config: &mut DecoderConfig) -> Result<(), HfError> {
    ROUTER.read(fields, config)?;
    let moe = experts(config);
    let is_single = moe.topk == 1;
    let expected = "true: the model's code always divides by the sum";
    fields.require(is_single || !moe.raw_scores, "norm_topk_prob", "false", expected)?;
    moe.raw_scores = is_single;
    Ok(())
}
