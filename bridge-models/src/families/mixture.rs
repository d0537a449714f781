//! Rows of settings and positions of experts that families with experts share.

use bridge_core::config::{RouterDType, RouterScoreFunction};
use serde_json::{Map, Value, json};

use crate::decoder::{DecoderConfig, MoeConfig};
use crate::huggingface::HfError;
use crate::huggingface::fields::Fields;
use crate::huggingface::settings::Setting;
use crate::huggingface::weight_map::{Fusion, WeightRule, rule};

/// The experts of a decoder of a family that has them in every model.
pub(super) fn experts(config: &mut DecoderConfig) -> &mut MoeConfig {
    config.moe.get_or_insert_with(MoeConfig::neutral)
}

/// True if the weights of a token's experts sum to one: then they are the softmax over the chosen
/// experts alone.
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

/// Defaults of absent settings of a router with sigmoids.
pub(super) struct SigmoidRouter {
    /// `n_group`.
    pub groups: usize,
    /// `topk_group`.
    pub chosen: usize,
    /// `routed_scaling_factor`.
    pub factor: f64,
}

impl SigmoidRouter {
    /// Reads a router like DeepSeek-V3's: groups of experts (a single group has no effect), a bias
    /// in the choice, and the weights of the chosen experts.
    pub fn read(&self, fields: &Fields, config: &mut DecoderConfig) -> Result<(), HfError> {
        let groups = fields.size("n_group")?.unwrap_or(self.groups);
        let chosen = fields.size("topk_group")?.unwrap_or(self.chosen);
        let factor = fields.number("routed_scaling_factor")?.unwrap_or(self.factor);
        let moe = experts(config);
        (moe.score_function, moe.expert_bias) = (RouterScoreFunction::Sigmoid, true);
        // Scores are computed in float32 with any dtype of the parameters.
        moe.router_precision = Some(RouterDType::Fp32);
        let divides = moe.num_experts.is_multiple_of(groups);
        let expected = format!("a divisor of n_routed_experts ({})", moe.num_experts);
        fields.require(divides, "n_group", &groups.to_string(), &expected)?;
        if groups > 1 {
            // Groups are compared by their best two experts, however many a token uses.
            (moe.num_groups, moe.group_topk, moe.group_score_topk) = (Some(groups), Some(chosen), Some(2));
        }
        moe.topk_scaling_factor = Some(factor).filter(|factor| *factor != 1.0);
        moe.raw_scores = !fields.bool("norm_topk_prob")?.unwrap_or(true);
        Ok(())
    }

    /// Writes the router's settings.
    pub fn write(moe: &MoeConfig, settings: &mut Map<String, Value>) {
        settings.insert("n_group".into(), json!(moe.num_groups.unwrap_or(1)));
        settings.insert("topk_group".into(), json!(moe.group_topk.unwrap_or(1)));
        settings.insert("routed_scaling_factor".into(), json!(moe.topk_scaling_factor.unwrap_or(1.0)));
        settings.insert("norm_topk_prob".into(), json!(!moe.raw_scores));
    }
}

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

/// Names of a mixture with all experts of a layer in two tensors.
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
