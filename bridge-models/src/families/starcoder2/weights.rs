//! Names of the parameters that Llama does not have.

use crate::families::prelude::*;

pub(super) const OWN: &[WeightRule] = &[
    layer!("mlp.linear_fc1.weight", "mlp.c_fc.weight"),
    layer!("mlp.linear_fc1.bias", "mlp.c_fc.bias"),
    layer!("mlp.linear_fc2.weight", "mlp.c_proj.weight"),
    layer!("mlp.linear_fc2.bias", "mlp.c_proj.bias"),
];

/// Biases of norms.
pub(crate) const NORM_BIASES: &[WeightRule] = &[
    layer!("input_layernorm.bias", "input_layernorm.bias"),
    layer!("pre_mlp_layernorm.bias", "post_attention_layernorm.bias"),
    rule("decoder.final_layernorm.bias", &["model.norm.bias"]),
];
