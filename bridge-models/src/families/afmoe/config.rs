//! Settings of AFMoE; absent ones have the values of `AfmoeConfig`.

use crate::families::mixture::{ExpertFactor, FirstDense, SharedExperts, sigmoid_router};
use crate::families::prelude::*;
use crate::huggingface::windows::WindowedRope;

pub(super) const SETTINGS: &[Setting] = &[
    Setting::Rows(SIZES),
    size_or("head_dim", |c| &mut c.kv_channels, |_, _| Ok(128)),
    size_or("max_position_embeddings", |c| &mut c.max_position_embeddings, |_, _| Ok(16_384)),
    Setting::Always(|c| {
        c.residual.norms = NormPlacement::Sandwich;
        c.qk_layernorm = true;
        c.output_gate = Some(OutputGateForm::Element);
        sigmoid_router(c);
    }),
    size_or("moe_intermediate_size", |c| &mut experts(c).ffn_hidden_size, |_, _| Ok(1408)),
    size_or("num_experts", |c| &mut experts(c).num_experts, |_, _| Ok(64)),
    size_or("num_experts_per_tok", |c| &mut experts(c).topk, |_, _| Ok(6)),
    Setting::Group(&FirstDense("num_dense_layers", 1)),
    Setting::Group(&SharedExperts("num_shared_experts", Some(2))),
    Setting::Group(&ExpertFactor("route_scale", 1.0)),
    Setting::Rows(BLOCKS),
    Setting::Rows(ATTENTION_BIAS),
    Setting::Number("rms_norm_eps", |c| &mut c.norm.epsilon, |_, _| Ok(1e-5)),
    Setting::Switch("tie_word_embeddings", |c| &mut c.share_embeddings_and_output_weights, false),
    Setting::Keys {
        read: |fields, c| {
            let is_scaled = fields.bool("mup_enabled")?.unwrap_or(false);
            c.embedding_multiplier = if is_scaled { (c.hidden_size as f64).sqrt() } else { 1.0 };
            Ok(())
        },
        write: |c, settings| {
            // Another factor is read back as another, and refused so.
            settings.insert("mup_enabled".into(), json!(c.embedding_multiplier != 1.0));
        },
    },
    Setting::Keys {
        read: |fields, c| {
            let pattern = fields.size("global_attn_every_n_layers")?.unwrap_or(4);
            windows::read_pattern(fields, c, 1024, pattern)
        },
        write: windows::write_pattern,
    },
    Setting::Group(&WindowedRope(RopeForm::USUAL)),
];
