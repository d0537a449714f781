//! Names of the parameters that Llama does not have, or names otherwise.

use crate::huggingface::weight_map::{Fusion, WeightRule, rule};

pub(super) const OWN: &[WeightRule] = &[
    rule("decoder.layers.{}.input_layernorm.weight", &["model.layers.{}.attention_layernorm.weight"]),
    rule("decoder.layers.{}.pre_mlp_layernorm.weight", &["model.layers.{}.feedforward_layernorm.weight"]),
    rule("decoder.layers.{}.mlp.linear_fc1.weight", &["model.layers.{}.mlp.up_proj.weight"]),
    rule("decoder.layers.{}.mlp.activation_func.alpha_p", &["model.layers.{}.mlp.act_fn.alpha_p"]),
    rule("decoder.layers.{}.mlp.activation_func.alpha_n", &["model.layers.{}.mlp.act_fn.alpha_n"]),
    rule("decoder.layers.{}.mlp.activation_func.beta", &["model.layers.{}.mlp.act_fn.beta"]).fused(Fusion::Scalar),
    rule("decoder.layers.{}.mlp.activation_func.eps", &["model.layers.{}.mlp.act_fn.eps"]).fused(Fusion::Scalar),
];
