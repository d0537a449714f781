//! Qwen3-Next: linear attention by the gated delta rule in three of four layers, gated softmax
//! attention in the fourth, and experts with a gated shared expert.

#[cfg(test)]
mod tests;

use super::mixture::{self, norm_topk_prob};
use super::prelude::*;
use super::qwen2_moe::{read_shared_expert, write_shared_expert};
use super::qwen3_moe::SPARSE_LAYERS;
use super::{llama, qwen2_moe, qwen3};
use crate::decoder::LinearAttentionConfig;
use crate::huggingface::windows::layers_of_two_types;

pub(super) static FAMILY: Family = Family {
    model_type: "qwen3_next",
    architecture: "Qwen3NextForCausalLM",
    settings: SETTINGS,
    weights: &[
        BY_HEAD,
        HYBRID_WEIGHTS,
        qwen2_moe::SHARED,
        qwen3::QK_NORMS,
        mixture::APART,
        mixture::STACKED,
        llama::WEIGHTS,
    ],
    dropped: &["mtp."],
    ..Family::USUAL
};

/// Settings; absent ones have the values of `Qwen3NextConfig`.
const SETTINGS: &[Setting] = &[
    Setting::Rows(SIZES),
    Setting::KeyValueHeads(2),
    Setting::Rows(HYBRID),
    Setting::Rows(EXPERTS),
    size_or("num_experts_per_tok", |c| &mut experts(c).topk, 10),
    size_or("num_experts", |c| &mut experts(c).num_experts, 512),
    norm_topk_prob(true),
    SPARSE_LAYERS,
];

/// Attention of both kinds and the norms. Sizes are set before.
pub(super) const HYBRID: &[Setting] = &[
    head_size(256),
    positions(32_768),
    Setting::Always(|c| {
        c.norm.zero_centered_gamma = true;
        c.qk_layernorm = true;
        c.output_gate = Some(OutputGateForm::Fused);
    }),
    Setting::Only("attn_output_gate", || json!(true)),
    size_or("linear_conv_kernel_dim", |c| &mut linear(c).conv_kernel, 4),
    size_or("linear_key_head_dim", |c| &mut linear(c).key_head_size, 128),
    size_or("linear_value_head_dim", |c| &mut linear(c).value_head_size, 128),
    size_or("linear_num_key_heads", |c| &mut linear(c).num_key_heads, 16),
    size_or("linear_num_value_heads", |c| &mut linear(c).num_value_heads, 32),
    Setting::Keys {
        read: |fields, c| {
            let every = fields.size("full_attention_interval")?.unwrap_or(4);
            read_linear_layers(fields, c, |layer| !(layer + 1).is_multiple_of(every))
        },
        write: write_linear_layers,
    },
    Setting::Rows(BLOCKS),
    Setting::Rule(convolution_has_silu),
    Setting::Rows(ATTENTION_BIAS),
    rms_norm_epsilon(1e-6),
    tied_embeddings(false),
    Setting::Group(&RopeForm { percent: Some(0.25), ..RopeForm::USUAL }),
    Setting::Unused(&["mamba_ssm_dtype", "mtp_num_hidden_layers", "mtp_use_dedicated_embeddings"]),
];

/// Experts beside one for all tokens that has a gate.
pub(super) const EXPERTS: &[Setting] = &[
    size_or("moe_intermediate_size", |c| &mut experts(c).ffn_hidden_size, 512),
    Setting::Keys { read: |fields, c| read_shared_expert(fields, c, 512), write: write_shared_expert },
];

/// The linear attention that every model of the family has.
pub(super) fn linear(config: &mut DecoderConfig) -> &mut LinearAttentionConfig {
    config.linear_attention.get_or_insert_with(LinearAttentionConfig::neutral)
}

/// Names in `layer_types` of a layer with softmax attention and of one with linear attention.
const TYPES: [&str; 2] = ["full_attention", "linear_attention"];

/// The layers that `layer_types` says to have linear attention; without it, those for which `usual`
/// holds.
pub(super) fn read_linear_layers(
    fields: &Fields,
    config: &mut DecoderConfig,
    usual: impl Fn(usize) -> bool,
) -> Result<(), HfError> {
    let num_layers = config.num_layers;
    let layers = layers_of_two_types(fields, "layer_types", TYPES, num_layers)?;
    let layers = layers.unwrap_or_else(|| (0..num_layers).map(usual).collect());
    linear(config).layers = LayerPattern::from_list(layers);
    Ok(())
}

pub(super) fn write_linear_layers(config: &DecoderConfig, settings: &mut Map<String, Value>) {
    let is_linear = |layer| config.linear_layer(layer).is_some();
    settings.insert("layer_types".into(), windows::names_of_layers(TYPES, config.num_layers, is_linear));
}

/// `hidden_act` is the convolution's activation too.
pub(super) fn convolution_has_silu(fields: &Fields, config: &DecoderConfig) -> Result<(), HfError> {
    let found = fields.get("hidden_act").map_or("absent".into(), Value::to_string);
    let expected = "silu, which is the activation of linear attention's convolution too";
    fields.require(config.activation == Activation::Silu, "hidden_act", &found, expected)
}

/// Names of the parameters of linear attention and of gated softmax attention. The projection in
/// two tensors that are ordered by key heads.
const BY_HEAD: &[WeightRule] =
    &[layer!("self_attention.in_proj.weight", "linear_attn.in_proj_qkvz.weight", "linear_attn.in_proj_ba.weight")
        .fused(Fusion::LinearByHead)];

/// The other parameters of both kinds of attention. Rows of queries and of their gates alternate by
/// heads.
pub(super) const HYBRID_WEIGHTS: &[WeightRule] = &[
    layer!(
        "self_attention.linear_qkv.weight",
        "self_attn.q_proj.weight",
        "self_attn.k_proj.weight",
        "self_attn.v_proj.weight"
    )
    .fused(Fusion::GatedQkv),
    layer!("self_attention.linear_qkv.bias", "self_attn.q_proj.bias", "self_attn.k_proj.bias", "self_attn.v_proj.bias")
        .fused(Fusion::GatedQkv),
    layer!("self_attention.conv1d.weight", "linear_attn.conv1d.weight").fused(Fusion::Convolution),
    layer!("self_attention.A_log", "linear_attn.A_log"),
    layer!("self_attention.dt_bias", "linear_attn.dt_bias"),
    layer!("self_attention.out_norm.weight", "linear_attn.norm.weight"),
    layer!("self_attention.out_proj.weight", "linear_attn.out_proj.weight"),
];
