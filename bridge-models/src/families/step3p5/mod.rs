//! Step 3.5 and the language model of Step 3.7: gates on heads, other numbers of query heads and
//! another rotation in layers with a sliding window, units with bounds by layer, and experts behind
//! a sigmoid router. Layers of multi-token prediction in published files are ignored, as in
//! transformers.

mod layers;
#[cfg(test)]
mod tests;

use super::gemma2::{read_scale, write_scale};
use super::mixture::{self, ExpertFactor, sigmoid_router};
use super::prelude::*;
use super::rows::ROWS_BESIDE_ACTIVATION;
use super::{llama, qwen3};

pub(super) static FAMILY: Family = Family {
    model_type: "step3p5",
    architecture: "Step3p5ForCausalLM",
    settings: SETTINGS,
    weights: &[qwen3::QK_NORMS, ON_DISK, mixture::STACKED, mixture::SHARED_IN_MODULE, llama::WEIGHTS],
    module_names: &[(".share_expert.", ".mlp.shared_experts."), (".moe.", ".mlp.")],
    dropped: &["model.layers.45.", "model.layers.46.", "model.layers.47."],
    aliases: &[
        ("num_local_experts", "n_routed_experts"),
        ("num_attention_groups", "num_key_value_heads"),
        ("moe_num_experts", "n_routed_experts"),
        ("moe_top_k", "num_experts_per_tok"),
        ("share_expert_dims", "share_expert_dim"),
        ("num_mtp_layers", "num_nextn_predict_layers"),
    ],
    ..Family::USUAL
};

/// Settings; absent ones have the values of `Step3p7TextConfig`. Settings by layer are in `layers`.
const SETTINGS: &[Setting] = &[
    Setting::Rows(SIZES),
    Setting::KeyValueHeads(8),
    head_size(128),
    positions(128_000),
    Setting::Rows(ROWS_BESIDE_ACTIVATION),
    Setting::Always(|c| {
        c.norm.zero_centered_gamma = true;
        c.activation = Activation::Silu;
        (c.qk_layernorm, c.output_gate) = (true, Some(OutputGateForm::Head));
        sigmoid_router(c);
    }),
    Setting::Rows(ATTENTION_BIAS),
    MLP_BIAS,
    rms_norm_epsilon(1e-5),
    tied_embeddings(false),
    Setting::Keys { read: |fields, c| read_scale(fields, c, c.kv_channels as f64), write: write_scale },
    size_or("moe_intermediate_size", |c| &mut experts(c).ffn_hidden_size, 1280),
    size_or("n_routed_experts", |c| &mut experts(c).num_experts, 288),
    size_or("num_experts_per_tok", |c| &mut experts(c).topk, 8),
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

/// Names of the gates on heads, and names in files of the router and the experts, of which a layer
/// has all in one tensor for each of its matrices.
const ON_DISK: &[WeightRule] = &[
    layer!("self_attention.linear_gate.weight", "self_attn.g_proj.weight"),
    layer!("mlp.router.weight", "moe.gate.weight"),
    layer!("mlp.router.expert_bias", "moe.router_bias"),
    layer!("mlp.experts.local_experts.{}.linear_fc1.weight", "moe.gate_proj.weight", "moe.up_proj.weight")
        .fused(Fusion::GateUp),
    layer!("mlp.experts.local_experts.{}.linear_fc2.weight", "moe.down_proj.weight"),
    layer!("mlp.shared_experts.linear_fc1.weight", "share_expert.gate_proj.weight", "share_expert.up_proj.weight")
        .fused(Fusion::GateUp),
    layer!("mlp.shared_experts.linear_fc1.bias", "share_expert.gate_proj.bias", "share_expert.up_proj.bias")
        .fused(Fusion::GateUp),
    layer!("mlp.shared_experts.linear_fc2.weight", "share_expert.down_proj.weight"),
    layer!("mlp.shared_experts.linear_fc2.bias", "share_expert.down_proj.bias"),
];
