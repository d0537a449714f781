//! Settings of Hunyuan 3; absent ones have the values of `HYV3Config`.

use crate::families::mixture::{ExpertFactor, MlpLayerTypes, SharedExperts, sigmoid_router};
use crate::families::prelude::*;

pub(super) const SETTINGS: &[Setting] = &[
    Setting::Rows(SIZES),
    Setting::KeyValueHeads(8),
    size_or("head_dim", |c| &mut c.kv_channels, |_, _| Ok(128)),
    size_or("max_position_embeddings", |c| &mut c.max_position_embeddings, |_, _| Ok(131_072)),
    Setting::Always(|c| {
        c.qk_layernorm = true;
        sigmoid_router(c);
    }),
    size_or("moe_intermediate_size", |c| &mut experts(c).ffn_hidden_size, |_, _| Ok(1536)),
    size_or("num_experts", |c| &mut experts(c).num_experts, |_, _| Ok(192)),
    size_or("num_experts_per_tok", |c| &mut experts(c).topk, |_, _| Ok(8)),
    Setting::Group(&ExpertFactor("router_scaling_factor", 2.826)),
    Setting::Group(&SharedExperts("num_shared_experts", Some(1))),
    Setting::Group(&MlpLayerTypes(None)),
    Setting::Rows(BLOCKS),
    Setting::Number("initializer_range", |c| &mut c.init_method_std, |_, _| Ok(0.006)),
    Setting::Rows(ATTENTION_BIAS),
    Setting::Switch("mlp_bias", |c| &mut c.mlp_bias, false),
    Setting::Number("rms_norm_eps", |c| &mut c.norm.epsilon, |_, _| Ok(1e-5)),
    Setting::Switch("tie_word_embeddings", |c| &mut c.share_embeddings_and_output_weights, false),
    Setting::Group(&RopeForm { theta: 11_158_840.0, ..RopeForm::USUAL }),
    // Sums of two numbers in 16 bits are computed in float32 and rounded with it and without.
    Setting::Unused(&["enable_moe_fp32_combine"]),
];
