//! Names of the parameters that Llama does not have.

use crate::families::prelude::*;

pub(crate) const QK_NORMS: &[WeightRule] = &RULES;

/// [`QK_NORMS`] for families whose files have other names than the state of a module.
pub(crate) const QK_NORMS_IN_MODULE: &[WeightRule] = &stacked(RULES);

const RULES: [WeightRule; 2] = [
    layer!("self_attention.q_layernorm.weight", "self_attn.q_norm.weight"),
    layer!("self_attention.k_layernorm.weight", "self_attn.k_norm.weight"),
];
