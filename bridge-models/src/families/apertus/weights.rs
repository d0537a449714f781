//! Names of the parameters that Llama does not have, or names otherwise.

use crate::families::prelude::*;

pub(super) const OWN: &[WeightRule] = &[
    layer!("input_layernorm.weight", "attention_layernorm.weight"),
    layer!("pre_mlp_layernorm.weight", "feedforward_layernorm.weight"),
    layer!("mlp.linear_fc1.weight", "mlp.up_proj.weight"),
    layer!("mlp.activation_func.alpha_p", "mlp.act_fn.alpha_p"),
    layer!("mlp.activation_func.alpha_n", "mlp.act_fn.alpha_n"),
    layer!("mlp.activation_func.beta", "mlp.act_fn.beta").fused(Fusion::Scalar),
    layer!("mlp.activation_func.eps", "mlp.act_fn.eps").fused(Fusion::Scalar),
];
