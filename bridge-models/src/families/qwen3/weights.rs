//! Names of the parameters that Llama does not have.

use crate::huggingface::weight_map::{WeightRule, rule, stacked};

pub(crate) const QK_NORMS: &[WeightRule] = &RULES;

/// [`QK_NORMS`] for families whose files have other names than the state of a module.
pub(crate) const QK_NORMS_IN_MODULE: &[WeightRule] = &stacked(RULES);

const RULES: [WeightRule; 2] = [
    rule("decoder.layers.{}.self_attention.q_layernorm.weight", &["model.layers.{}.self_attn.q_norm.weight"]),
    rule("decoder.layers.{}.self_attention.k_layernorm.weight", &["model.layers.{}.self_attn.k_norm.weight"]),
];
