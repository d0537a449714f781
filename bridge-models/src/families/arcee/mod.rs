//! Arcee (AFM-4.5B): a Llama whose feed-forward block has no gate, and squares its ReLU.

pub(super) mod gguf;
#[cfg(test)]
mod tests;

use super::llama;
use super::prelude::*;

pub(super) static FAMILY: Family = Family {
    model_type: "arcee",
    architecture: "ArceeForCausalLM",
    settings: SETTINGS,
    weights: &[UP, llama::WEIGHTS],
    ..Family::USUAL
};

/// Settings; absent ones have the values of `ArceeConfig`.
const SETTINGS: &[Setting] = &[
    Setting::Rows(LAYERS),
    Setting::Always(|c| c.norm.kind = Normalization::RmsNorm),
    initializer_range(0.02),
    rms_norm_epsilon(1e-5),
    ROPE,
];

/// Sizes, attention, and a feed-forward block without a gate: settings of Nemotron too.
pub(super) const LAYERS: &[Setting] = &[
    Setting::Rows(SIZES),
    HEAD_SIZE,
    positions(4096),
    USUAL_SOFTMAX_SCALE,
    Setting::Activation("hidden_act", |c| &mut c.activation, Activation::SquaredRelu),
    Setting::Number("attention_dropout", |c| &mut c.attention_dropout, 0.0),
    Setting::Rows(ATTENTION_BIAS),
    MLP_BIAS,
    tied_embeddings(false),
];

/// Names of a feed-forward block without a gate.
pub(super) const UP: &[WeightRule] =
    &[layer!("mlp.linear_fc1.weight", "mlp.up_proj.weight"), layer!("mlp.linear_fc1.bias", "mlp.up_proj.bias")];
