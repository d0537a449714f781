//! GPT-OSS: experts with biases and a clamped gate in every layer, attention with sinks, and a
//! window in every other layer.

#[cfg(test)]
mod tests;

use super::llama;
use super::prelude::*;

pub(super) static FAMILY: Family = Family {
    model_type: "gpt_oss",
    architecture: "GptOssForCausalLM",
    settings: SETTINGS,
    weights: &[WEIGHTS, llama::WEIGHTS],
    aliases: &[("num_experts", "num_local_experts")],
    ..Family::USUAL
};

/// Settings; absent ones have the values of `GptOssConfig`.
const SETTINGS: &[Setting] = &[
    Setting::Rows(SIZES),
    Setting::KeyValueHeads(8),
    Setting::Group(&HeadSizeOr(64)),
    USUAL_SOFTMAX_SCALE,
    positions(131_072),
    Setting::Only("hidden_act", || json!("silu")),
    Setting::Only("swiglu_alpha", || json!(1.702)),
    Setting::Always(|c| {
        c.norm.kind = Normalization::RmsNorm;
        (c.gated_linear_unit, c.activation, c.linear_offset) = (true, Activation::QuickGelu, 1.0);
        (c.attention_sinks, c.mlp_bias) = (true, true);
        experts(c).ffn_hidden_size = c.ffn_hidden_size;
        (experts(c).linear_bias, experts(c).router_bias) = (true, true);
    }),
    Setting::Keys { read: read_clamp, write: write_clamp },
    size_or("num_local_experts", |c| &mut experts(c).num_experts, 128),
    size_or("num_experts_per_tok", |c| &mut experts(c).topk, 4),
    initializer_range(0.02),
    Setting::Number("attention_dropout", |c| &mut c.attention_dropout, 0.0),
    Setting::Switch("attention_bias", |c| &mut c.qkv_bias, true),
    Setting::Always(|c| c.proj_bias = c.qkv_bias),
    rms_norm_epsilon(1e-5),
    tied_embeddings(false),
    Setting::Keys { read: read_rope, write: rope::write },
    Setting::Keys { read: |fields, c| windows::read_pattern(fields, c, 128, 2), write: windows::write_pattern },
];

pub(super) fn read_clamp(fields: &Fields, config: &mut DecoderConfig) -> Result<(), HfError> {
    config.activation_clamp = Some(fields.number("swiglu_limit")?.unwrap_or(7.0));
    Ok(())
}

pub(super) fn write_clamp(config: &DecoderConfig, settings: &mut Map<String, Value>) {
    // Without a bound the usual one is read back, and refused so.
    settings.extend(config.activation_clamp.map(|clamp| ("swiglu_limit".to_owned(), json!(clamp))));
}

/// YaRN as in the first of these models where the file has no table, with the keys beside it.
fn read_rope(fields: &Fields, config: &mut DecoderConfig) -> Result<(), HfError> {
    let usual = json!({
        "rope_type": "yarn",
        "factor": 32.0,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "truncate": false,
        "original_max_position_embeddings": 4096,
    });
    rope::read_or(fields, config, RopeForm { theta: 150_000.0, ..RopeForm::USUAL }, &usual).map(drop)
}

/// Names of the sinks, the router and the experts. All experts of a layer are in one tensor, their
/// matrices `[inputs, outputs]`, and outputs of the gate and of the values alternate.
const WEIGHTS: &[WeightRule] = &[
    layer!("self_attention.core_attention.softmax_offset", "self_attn.sinks"),
    layer!("mlp.router.weight", "mlp.router.weight"),
    layer!("mlp.router.bias", "mlp.router.bias"),
    layer!("mlp.experts.local_experts.{}.linear_fc1.weight", "mlp.experts.gate_up_proj")
        .fused(Fusion::Alternating)
        .rows_are_inputs()
        .stacked(),
    layer!("mlp.experts.local_experts.{}.linear_fc1.bias", "mlp.experts.gate_up_proj_bias")
        .fused(Fusion::Alternating)
        .stacked(),
    layer!("mlp.experts.local_experts.{}.linear_fc2.weight", "mlp.experts.down_proj").rows_are_inputs().stacked(),
    layer!("mlp.experts.local_experts.{}.linear_fc2.bias", "mlp.experts.down_proj_bias").stacked(),
];
