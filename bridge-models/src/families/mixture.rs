//! What families with experts share: rows of settings, and where experts are.

use serde_json::json;

use crate::decoder::{DecoderConfig, MoeConfig};
use crate::huggingface::settings::Setting;
use crate::huggingface::weight_map::{Fusion, WeightRule, rule};

/// The experts of a decoder of a family that has them in every model.
pub(super) fn experts(config: &mut DecoderConfig) -> &mut MoeConfig {
    config.moe.get_or_insert_with(MoeConfig::neutral)
}

/// Whether the weights of a token's experts sum to one: then they are the softmax over the chosen experts alone.
pub(super) const NORM_TOPK_PROB: Setting = Setting::Keys {
    read: |fields, c| {
        experts(c).pre_softmax = !fields.bool("norm_topk_prob")?.unwrap_or(false);
        Ok(())
    },
    write: |c, settings| {
        let is_normalized = c.moe.as_ref().is_some_and(|moe| !moe.pre_softmax);
        settings.insert("norm_topk_prob".into(), json!(is_normalized));
    },
};

/// Router and experts, each expert with three matrices of its own: gate, up and down.
pub(super) const APART: &[WeightRule] = &[
    rule("decoder.layers.{}.mlp.router.weight", &["model.layers.{}.mlp.gate.weight"]),
    rule(
        "decoder.layers.{}.mlp.experts.local_experts.{}.linear_fc1.weight",
        &["model.layers.{}.mlp.experts.{}.gate_proj.weight", "model.layers.{}.mlp.experts.{}.up_proj.weight"],
    )
    .fused(Fusion::GateUp),
    rule(
        "decoder.layers.{}.mlp.experts.local_experts.{}.linear_fc2.weight",
        &["model.layers.{}.mlp.experts.{}.down_proj.weight"],
    ),
];

/// The same with all experts of a layer in two tensors.
pub(super) const STACKED: &[WeightRule] = &[
    rule("decoder.layers.{}.mlp.router.weight", &["model.layers.{}.mlp.gate.weight"]).stacked(),
    rule(
        "decoder.layers.{}.mlp.experts.local_experts.{}.linear_fc1.weight",
        &["model.layers.{}.mlp.experts.gate_up_proj"],
    )
    .stacked(),
    rule(
        "decoder.layers.{}.mlp.experts.local_experts.{}.linear_fc2.weight",
        &["model.layers.{}.mlp.experts.down_proj"],
    )
    .stacked(),
];
