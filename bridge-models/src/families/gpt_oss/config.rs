//! Settings of GPT-OSS; absent ones have the values of `GptOssConfig`.

use crate::families::prelude::*;

pub(super) const SETTINGS: &[Setting] = &[
    Setting::Rows(SIZES),
    Setting::KeyValueHeads(8),
    // Null means another value than absence.
    size_or(
        "head_dim",
        |c| &mut c.kv_channels,
        |fields, c| Ok(if fields.has("head_dim") { c.hidden_size / c.num_attention_heads } else { 64 }),
    ),
    USUAL_SOFTMAX_SCALE,
    size_or("max_position_embeddings", |c| &mut c.max_position_embeddings, |_, _| Ok(131_072)),
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
    size_or("num_local_experts", |c| &mut experts(c).num_experts, |_, _| Ok(128)),
    size_or("num_experts_per_tok", |c| &mut experts(c).topk, |_, _| Ok(4)),
    Setting::Number("initializer_range", |c| &mut c.init_method_std, |_, _| Ok(0.02)),
    Setting::Number("attention_dropout", |c| &mut c.attention_dropout, |_, _| Ok(0.0)),
    Setting::Switch("attention_bias", |c| &mut c.qkv_bias, true),
    Setting::Always(|c| c.proj_bias = c.qkv_bias),
    Setting::Number("rms_norm_eps", |c| &mut c.norm.epsilon, |_, _| Ok(1e-5)),
    Setting::Switch("tie_word_embeddings", |c| &mut c.share_embeddings_and_output_weights, false),
    Setting::Keys { read: read_rope, write: rope::write },
    Setting::Keys { read: |fields, c| windows::read_pattern(fields, c, 128, 2), write: windows::write_pattern },
];

pub(crate) fn read_clamp(fields: &Fields, config: &mut DecoderConfig) -> Result<(), HfError> {
    config.activation_clamp = Some(fields.number("swiglu_limit")?.unwrap_or(7.0));
    Ok(())
}

pub(crate) fn write_clamp(config: &DecoderConfig, settings: &mut Map<String, Value>) {
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
