//! Names of the norms of Gemma's layers.

use crate::families::prelude::*;

pub(crate) const NORMS: &[WeightRule] = &[
    layer!("post_self_attention_layernorm.weight", "post_attention_layernorm.weight"),
    layer!("pre_mlp_layernorm.weight", "pre_feedforward_layernorm.weight"),
    layer!("post_mlp_layernorm.weight", "post_feedforward_layernorm.weight"),
];
