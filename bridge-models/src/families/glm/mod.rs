//! GLM-4-9B and GLM-Edge: a Llama with biases of queries, keys and values, and with heads of which
//! the first half is rotated in neighbouring pairs.

#[cfg(test)]
mod tests;

use super::llama;
use super::prelude::*;

pub(super) static FAMILY: Family = Family {
    model_type: "glm",
    architecture: "GlmForCausalLM",
    settings: SETTINGS,
    weights: &[GATE_UP, llama::WEIGHTS],
    ..Family::USUAL
};

/// Settings; absent ones have the values of `GlmConfig`. GLM-4 shares all rows.
pub(super) const SETTINGS: &[Setting] = &[
    Setting::Rows(SIZES),
    Setting::KeyValueHeads(2),
    head_size(128),
    positions(131_072),
    Setting::Rows(BLOCKS),
    Setting::Switch("attention_bias", |c| &mut c.qkv_bias, true),
    rms_norm_epsilon(1.5625e-7),
    tied_embeddings(false),
    Setting::Group(&RopeForm { percent: Some(0.5), interleaved: true, ..RopeForm::USUAL }),
];

/// Names of the parameters that Llama does not have. One matrix has the rows of the gate, then
/// those of the other half, as ours.
pub(super) const GATE_UP: &[WeightRule] = &[layer!("mlp.linear_fc1.weight", "mlp.gate_up_proj.weight")];
