//! Settings of MiniMax-M2; absent ones have the values of `MiniMaxM2Config`.

use crate::families::mixture::sigmoid_router;
use crate::families::prelude::*;

pub(super) const SETTINGS: &[Setting] = &[
    Setting::Rows(SIZES),
    Setting::KeyValueHeads(8),
    size_or("head_dim", |c| &mut c.kv_channels, |_, _| Ok(128)),
    size_or("max_position_embeddings", |c| &mut c.max_position_embeddings, |_, _| Ok(196_608)),
    Setting::Always(|c| {
        c.qk_layernorm = true;
        c.qk_layernorm_scope = QkNormScope::Projection;
        let size = c.ffn_hidden_size;
        sigmoid_router(c).ffn_hidden_size = size;
    }),
    size_or("num_local_experts", |c| &mut experts(c).num_experts, |_, _| Ok(256)),
    size_or("num_experts_per_tok", |c| &mut experts(c).topk, |_, _| Ok(8)),
    Setting::Only("router_jitter_noise", || json!(0.0)),
    Setting::Rows(BLOCKS),
    Setting::Number("rms_norm_eps", |c| &mut c.norm.epsilon, |_, _| Ok(1e-6)),
    Setting::Switch("tie_word_embeddings", |c| &mut c.share_embeddings_and_output_weights, false),
    Setting::Keys { read: read_rope, write: rope::write_with_percent },
    // transformers ignores these keys of published files; other programs compute something else
    // for other values.
    Setting::Only("scoring_func", || json!("sigmoid")),
    Setting::Only("use_routing_bias", || json!(true)),
    Setting::Only("use_qk_norm", || json!(true)),
    Setting::Only("qk_norm_type", || json!("per_layer")),
    Setting::Only("shared_intermediate_size", || json!(0)),
    Setting::Rule(|fields, _| match fields.get("attn_type_list") {
        Some(Value::Array(types)) if types.iter().all(|full| *full == 1) => Ok(()),
        Some(found) => Err(fields.error("attn_type_list", &found.to_string(), "1 (full attention) for each layer")),
        None => Ok(()),
    }),
];

/// Published files have the number of rotated elements, `rotary_dim`, instead of a share.
pub(crate) fn read_rope(fields: &Fields, config: &mut DecoderConfig) -> Result<(), HfError> {
    let rotated = fields.size("rotary_dim")?;
    let share = rotated.map_or(1.0, |rotated| rotated as f64 / config.kv_channels as f64);
    rope::read(fields, config, RopeForm { theta: 5_000_000.0, percent: Some(share), ..RopeForm::USUAL })
}
