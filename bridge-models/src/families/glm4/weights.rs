//! Names of the norms that GLM does not have.

use crate::families::prelude::*;

pub(super) const NORMS: &[WeightRule] = &[
    layer!("post_self_attention_layernorm.weight", "post_self_attn_layernorm.weight"),
    layer!("post_mlp_layernorm.weight", "post_mlp_layernorm.weight"),
];
