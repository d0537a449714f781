//! Settings of Step 3.5; absent ones have the values of `Step3p7TextConfig`. Settings by layer are
//! in `layers`.

use super::layers;
use crate::families::gemma2::config::{read_scale, write_scale};
use crate::families::llama::config::ROWS_BESIDE_ACTIVATION;
use crate::families::mixture::{ExpertFactor, sigmoid_router};
use crate::families::prelude::*;

pub(super) const SETTINGS: &[Setting] = &[
    Setting::Rows(SIZES),
    Setting::KeyValueHeads(8),
    size_or("head_dim", |c| &mut c.kv_channels, |_, _| Ok(128)),
    size_or("max_position_embeddings", |c| &mut c.max_position_embeddings, |_, _| Ok(128_000)),
    Setting::Rows(ROWS_BESIDE_ACTIVATION),
    Setting::Always(|c| {
        c.norm.zero_centered_gamma = true;
        c.activation = Activation::Silu;
        (c.qk_layernorm, c.output_gate) = (true, Some(OutputGateForm::Head));
        sigmoid_router(c);
    }),
    Setting::Rows(ATTENTION_BIAS),
    Setting::Switch("mlp_bias", |c| &mut c.mlp_bias, false),
    Setting::Number("rms_norm_eps", |c| &mut c.norm.epsilon, |_, _| Ok(1e-5)),
    Setting::Switch("tie_word_embeddings", |c| &mut c.share_embeddings_and_output_weights, false),
    Setting::Keys { read: |fields, c| read_scale(fields, c, c.kv_channels as f64), write: write_scale },
    size_or("moe_intermediate_size", |c| &mut experts(c).ffn_hidden_size, |_, _| Ok(1280)),
    size_or("n_routed_experts", |c| &mut experts(c).num_experts, |_, _| Ok(288)),
    size_or("num_experts_per_tok", |c| &mut experts(c).topk, |_, _| Ok(8)),
    Setting::Keys {
        read: |fields, c| {
            experts(c).shared_expert_intermediate_size = Some(fields.size(SHARED)?.unwrap_or(1280));
            Ok(())
        },
        write: |c, settings| {
            let size = c.moe.as_ref().and_then(|moe| moe.shared_expert_intermediate_size);
            settings.insert(SHARED.into(), json!(size));
        },
    },
    Setting::Group(&ExpertFactor("moe_router_scaling_factor", 1.0)),
    Setting::Keys { read: layers::read, write: layers::write },
    // transformers ignores these keys of published files; other programs compute something else
    // for other values.
    Setting::Only("moe_router_activation", || json!("sigmoid")),
    Setting::Only("norm_expert_weight", || json!(true)),
    Setting::Only("use_moe_router_bias", || json!(true)),
    Setting::Only("use_head_wise_attn_gate", || json!(true)),
    Setting::Only("use_qk_norm", || json!(true)),
    Setting::Only("zero_centered", || json!(true)),
    Setting::Only("sink", || json!(false)),
    Setting::Only("yarn_only_types", || json!(["full_attention"])),
    // The unit is SiLU's whatever the first key says.
    Setting::Unused(&["hidden_act", "max_seq_len", "att_impl_type", "need_fp32_gate", "moe_every_n_layer"]),
];

const SHARED: &str = "share_expert_dim";
