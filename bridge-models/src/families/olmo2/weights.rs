//! Names of the parameters that Llama does not have.

use crate::families::prelude::*;

/// Norms of the outputs of blocks.
pub(crate) const NORMS: &[WeightRule] = &[
    layer!("post_self_attention_layernorm.weight", "post_attention_layernorm.weight"),
    layer!("post_mlp_layernorm.weight", "post_feedforward_layernorm.weight"),
];
