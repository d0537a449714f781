//! GLM-4 (0414): norms before and after blocks, half of each head rotated in neighbouring pairs,
//! gate and up in one matrix.

pub(super) mod gguf;
#[cfg(test)]
mod tests;

use super::prelude::*;
use super::{glm, llama};

pub(super) static FAMILY: Family = Family {
    model_type: "glm4",
    architecture: "Glm4ForCausalLM",
    settings: SETTINGS,
    weights: &[NORMS, glm::GATE_UP, llama::WEIGHTS],
    ..Family::USUAL
};

/// Settings; absent ones have the values of `Glm4Config`, which are those of `GlmConfig`.
const SETTINGS: &[Setting] =
    &[Setting::Rows(glm::SETTINGS), Setting::Always(|c| c.residual.norms = NormPlacement::Sandwich)];

/// Names of the norms that GLM does not have.
const NORMS: &[WeightRule] = &[
    layer!("post_self_attention_layernorm.weight", "post_self_attn_layernorm.weight"),
    layer!("post_mlp_layernorm.weight", "post_mlp_layernorm.weight"),
];
