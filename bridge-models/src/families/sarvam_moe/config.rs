//! Settings of Sarvam 30B; absent ones have the values of `SarvamMoEConfig`.

use crate::families::glm4_moe::config::LAYERS;
use crate::families::mixture::SigmoidRouter;
use crate::families::prelude::*;

pub(super) const SETTINGS: &[Setting] = &[
    Setting::Rows(SIZES),
    Setting::KeyValueHeads(4),
    size_or("head_dim", |c| &mut c.kv_channels, |_, _| Ok(64)),
    size_or("max_position_embeddings", |c| &mut c.max_position_embeddings, |_, _| Ok(131_072)),
    size_or("moe_intermediate_size", |c| &mut experts(c).ffn_hidden_size, |_, _| Ok(1024)),
    size_or("n_routed_experts", |c| &mut experts(c).num_experts, |_, _| Ok(128)),
    size_or("num_experts_per_tok", |c| &mut experts(c).topk, |_, _| Ok(6)),
    Setting::Group(&ROUTER),
    Setting::Rows(LAYERS),
    Setting::Number("initializer_range", |c| &mut c.init_method_std, |_, _| Ok(0.006)),
    Setting::Number("rms_norm_eps", |c| &mut c.norm.epsilon, |_, _| Ok(1e-6)),
    Setting::Switch("use_qk_norm", |c| &mut c.qk_layernorm, true),
    Setting::Group(&RopeForm { theta: 8_000_000.0, percent: Some(1.0), ..RopeForm::USUAL }),
    Setting::Only("score_function", || json!("sigmoid")),
    Setting::Only("moe_router_enable_expert_bias", || json!(true)),
    Setting::Only("use_bias", || json!(false)),
];

const ROUTER: SigmoidRouter = SigmoidRouter { factor: 2.5, ..SigmoidRouter::UNGROUPED };
