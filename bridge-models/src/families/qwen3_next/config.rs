//! Settings of Qwen3-Next; absent ones have the values of `Qwen3NextConfig`.

use crate::decoder::LinearAttentionConfig;
use crate::families::mixture::write_norm_topk_prob;
use crate::families::prelude::*;
use crate::families::qwen2_moe::config::{read_shared_expert, write_shared_expert};
use crate::families::qwen3_moe::config::SPARSE_LAYERS;
use crate::huggingface::windows::layers_of_two_types;

pub(super) const SETTINGS: &[Setting] = &[
    Setting::Rows(SIZES),
    Setting::KeyValueHeads(2),
    Setting::Rows(HYBRID),
    Setting::Rows(EXPERTS),
    size_or("num_experts_per_tok", |c| &mut experts(c).topk, |_, _| Ok(10)),
    size_or("num_experts", |c| &mut experts(c).num_experts, |_, _| Ok(512)),
    Setting::Keys {
        read: |fields, c| {
            experts(c).pre_softmax = !fields.bool("norm_topk_prob")?.unwrap_or(true);
            Ok(())
        },
        write: write_norm_topk_prob,
    },
    SPARSE_LAYERS,
];

/// Attention of both kinds and the norms. Sizes are set before.
pub(crate) const HYBRID: &[Setting] = &[
    size_or("head_dim", |c| &mut c.kv_channels, |_, _| Ok(256)),
    size_or("max_position_embeddings", |c| &mut c.max_position_embeddings, |_, _| Ok(32_768)),
    Setting::Always(|c| {
        c.norm.zero_centered_gamma = true;
        c.qk_layernorm = true;
        c.output_gate = Some(OutputGateForm::Fused);
    }),
    Setting::Only("attn_output_gate", || json!(true)),
    size_or("linear_conv_kernel_dim", |c| &mut linear(c).conv_kernel, |_, _| Ok(4)),
    size_or("linear_key_head_dim", |c| &mut linear(c).key_head_size, |_, _| Ok(128)),
    size_or("linear_value_head_dim", |c| &mut linear(c).value_head_size, |_, _| Ok(128)),
    size_or("linear_num_key_heads", |c| &mut linear(c).num_key_heads, |_, _| Ok(16)),
    size_or("linear_num_value_heads", |c| &mut linear(c).num_value_heads, |_, _| Ok(32)),
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
    Setting::Number("rms_norm_eps", |c| &mut c.norm.epsilon, |_, _| Ok(1e-6)),
    Setting::Switch("tie_word_embeddings", |c| &mut c.share_embeddings_and_output_weights, false),
    Setting::Group(&RopeForm { percent: Some(0.25), ..RopeForm::USUAL }),
    Setting::Unused(&["mamba_ssm_dtype", "mtp_num_hidden_layers", "mtp_use_dedicated_embeddings"]),
];

/// Experts beside one for all tokens that has a gate.
pub(crate) const EXPERTS: &[Setting] = &[
    size_or("moe_intermediate_size", |c| &mut experts(c).ffn_hidden_size, |_, _| Ok(512)),
    Setting::Keys { read: |fields, c| read_shared_expert(fields, c, 512), write: write_shared_expert },
];

/// The linear attention that every model of the family has.
pub(crate) fn linear(config: &mut DecoderConfig) -> &mut LinearAttentionConfig {
    config.linear_attention.get_or_insert_with(LinearAttentionConfig::neutral)
}

/// Names in `layer_types` of a layer with softmax attention and of one with linear attention.
const TYPES: [&str; 2] = ["full_attention", "linear_attention"];

/// The layers that `layer_types` says to have linear attention; without it, those for which `usual`
/// holds.
pub(crate) fn read_linear_layers(
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

pub(crate) fn write_linear_layers(config: &DecoderConfig, settings: &mut Map<String, Value>) {
    let is_linear = |layer| usize::from(config.linear_layer(layer).is_some());
    let types: Vec<&str> = (0..config.num_layers).map(|layer| TYPES[is_linear(layer)]).collect();
    settings.insert("layer_types".into(), json!(types));
}

/// `hidden_act` is the convolution's activation too.
pub(crate) fn convolution_has_silu(fields: &Fields, config: &DecoderConfig) -> Result<(), HfError> {
    let found = fields.get("hidden_act").map_or("absent".into(), Value::to_string);
    let expected = "silu, which is the activation of linear attention's convolution too";
    fields.require(config.activation == Activation::Silu, "hidden_act", &found, expected)
}
