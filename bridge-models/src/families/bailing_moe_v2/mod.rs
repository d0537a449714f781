//! Ling 2.0 and Ring 2.0 (Bailing MoE 2): Sarvam's layers and names, with half of each head rotated
//! and experts in groups. transformers has no class of it.

#[cfg(test)]
mod tests;

use super::deepseek_v3::config::PREDICTED_LAYERS;
use super::mixture::{self, FIRST_DENSE, FirstDense, SharedExperts, SigmoidRouter};
use super::prelude::*;
use super::{deepseek_v3, llama, qwen3, sarvam_moe};

pub(super) static FAMILY: Family = Family {
    model_type: "bailing_moe_v2",
    architecture: "BailingMoeV2ForCausalLM",
    settings: SETTINGS,
    weights: &[
        NORMS,
        sarvam_moe::ON_DISK,
        mixture::APART,
        mixture::SHARED,
        qwen3::QK_NORMS_IN_MODULE,
        mixture::SHARED_IN_MODULE,
        mixture::STACKED,
        llama::IN_MODULE,
        deepseek_v3::weights::PREDICTED_LAYERS,
        llama::WEIGHTS,
    ],
    ..Family::USUAL
};

/// Settings; absent ones have the values of its `BailingMoeV2Config`.
const SETTINGS: &[Setting] = &[
    Setting::Rows(SIZES),
    Setting::KeyValueHeads(4),
    head_size(128),
    positions(32_768),
    size_or("moe_intermediate_size", |c| &mut experts(c).ffn_hidden_size, 512),
    size_or("num_experts", |c| &mut experts(c).num_experts, 256),
    size_or("num_experts_per_tok", |c| &mut experts(c).topk, 8),
    Setting::Keys { read: read_router, write: |c, settings| ROUTER.write(c, settings) },
    Setting::Group(&SharedExperts("num_shared_experts", Some(1))),
    Setting::Group(&FirstDense(FIRST_DENSE, 1)),
    PREDICTED_LAYERS,
    Setting::Rows(BLOCKS),
    Setting::Switch("use_qkv_bias", |c| &mut c.qkv_bias, false),
    Setting::Switch("use_bias", |c| &mut c.proj_bias, false),
    Setting::Switch("use_qk_norm", |c| &mut c.qk_layernorm, true),
    rms_norm_epsilon(1e-6),
    tied_embeddings(false),
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

/// Name of the last norm of a layer of multi-token prediction.
const NORMS: &[WeightRule] =
    &[rule("mtp.layers.{}.final_layernorm.weight", &["model.layers.{}.final_layernorm.weight"])];
