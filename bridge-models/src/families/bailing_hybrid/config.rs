//! Settings of Bailing Hybrid; absent ones have the values of `BailingHybridConfig`.

use crate::families::deepseek_v3::config::read_latent_rope;
use crate::families::kimi_linear::config::{LATENT, ROUTER, set_kimi_heads};
use crate::families::mixture::{FIRST_DENSE, FirstDense, MlpLayerTypes, SharedExperts, SigmoidRouter};
use crate::families::prelude::*;
use crate::families::qwen3_next::config::{convolution_has_silu, linear, read_linear_layers, write_linear_layers};

pub(super) const SETTINGS: &[Setting] = &[
    Setting::Rows(SIZES),
    size_or("model_max_length", |c| &mut c.max_position_embeddings, |_, _| Ok(262_144)),
    Setting::Group(&LATENT),
    Setting::Always(|c| c.output_gate = Some(OutputGateForm::Head)),
    Setting::Keys { read: read_linear, write: write_linear },
    // The second name, which transformers writes too, counts where both are there.
    size_or("short_conv_kernel_size", |c| &mut linear(c).conv_kernel, |_, _| Ok(4)),
    size_or(
        "linear_conv_kernel_dim",
        |c| &mut linear(c).conv_kernel,
        |_, c| Ok(c.linear_attention.as_ref().map_or(4, |linear| linear.conv_kernel)),
    ),
    size_or("moe_intermediate_size", |c| &mut experts(c).ffn_hidden_size, |_, _| Ok(768)),
    size_or("num_experts", |c| &mut experts(c).num_experts, |_, _| Ok(512)),
    size_or("num_experts_per_token", |c| &mut experts(c).topk, |_, _| Ok(8)),
    Setting::Group(&SigmoidRouter { groups: 8, chosen: 4, factor: 2.5, ..ROUTER }),
    Setting::Group(&SharedExperts("num_shared_experts", Some(1))),
    Setting::Group(&MlpLayerTypes(Some(FirstDense(FIRST_DENSE, 2)))),
    Setting::Rows(BLOCKS),
    Setting::Rule(convolution_has_silu),
    Setting::Rows(ATTENTION_BIAS),
    Setting::Number("rms_norm_eps", |c| &mut c.norm.epsilon, |_, _| Ok(1e-6)),
    Setting::Switch("tie_word_embeddings", |c| &mut c.share_embeddings_and_output_weights, false),
    Setting::Keys { read: read_rope, write: rope::write },
    // Layers of multi-token prediction, which transformers drops, are not read.
    Setting::Unused(&["qk_head_dim", "num_nextn_predict_layers", "mtp_loss_scaling_factor", "first_k_dense_replace"]),
];

/// Every head is as large as `head_dim`, which transformers replaces by another size and then calls
/// `linear_head_dim`.
fn read_linear(fields: &Fields, config: &mut DecoderConfig) -> Result<(), HfError> {
    let (size, written) = (fields.size("head_dim")?, fields.size("linear_head_dim")?);
    let heads = fields.size("linear_num_heads")?.unwrap_or(config.num_attention_heads);
    set_kimi_heads(config, heads, written.or(size).unwrap_or(128));
    let is_bounded = fields.bool("kda_safe_gate")?.unwrap_or(true);
    let bound = fields.number("kda_lower_bound")?.unwrap_or(-5.0);
    linear(config).decay_bound = is_bounded.then_some(bound);
    let every = fields.size("layer_group_size")?.unwrap_or(6);
    read_linear_layers(fields, config, |layer| !(layer + 1).is_multiple_of(every))
}

fn write_linear(config: &DecoderConfig, settings: &mut Map<String, Value>) {
    let Some(linear) = &config.linear_attention else { return };
    write_linear_layers(config, settings);
    settings.insert("linear_num_heads".into(), json!(linear.num_key_heads));
    settings.insert("head_dim".into(), json!(linear.key_head_size));
    settings.insert("linear_head_dim".into(), json!(linear.key_head_size));
    settings.insert("kda_safe_gate".into(), json!(linear.decay_bound.is_some()));
    settings.extend(linear.decay_bound.map(|bound| ("kda_lower_bound".to_owned(), json!(bound))));
}

/// Rotation in pairs, by the base 6,000,000 where no key says it.
fn read_rope(fields: &Fields, config: &mut DecoderConfig) -> Result<(), HfError> {
    read_latent_rope(fields, config, true, RopeForm { theta: 6_000_000.0, ..RopeForm::USUAL })
}
