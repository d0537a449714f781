//! Names of the parameters that Mixtral does not have, or names otherwise.

use crate::families::prelude::*;

pub(super) const OWN: &[WeightRule] = &[
    layer!("mlp.router.weight", "mlp.router.weight").stacked(),
    layer!("input_layernorm.bias", "input_layernorm.bias"),
    layer!("pre_mlp_layernorm.bias", "post_attention_layernorm.bias"),
    rule("decoder.final_layernorm.bias", &["model.norm.bias"]),
];
