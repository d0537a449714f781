//! Nemotron-4 and Minitron: LayerNorm whose weights are stored minus one, a feed-forward block
//! without a gate that squares its ReLU, and heads of which the first half is rotated.

pub(super) mod gguf;
#[cfg(test)]
mod tests;

use super::arcee::LAYERS;
use super::prelude::*;
use super::{arcee, llama, starcoder2};

pub(super) static FAMILY: Family = Family {
    model_type: "nemotron",
    architecture: "NemotronForCausalLM",
    settings: SETTINGS,
    weights: &[starcoder2::NORM_BIASES, arcee::UP, llama::WEIGHTS],
    ..Family::USUAL
};

/// Settings; absent ones have the values of `NemotronConfig`.
const SETTINGS: &[Setting] = &[
    Setting::Rows(LAYERS),
    Setting::Always(|c| {
        c.norm.kind = Normalization::LayerNorm;
        c.norm.zero_centered_gamma = true;
    }),
    initializer_range(0.0134),
    Setting::Number("norm_eps", |c| &mut c.norm.epsilon, 1e-5),
    Setting::Group(&RopeForm { percent: Some(0.5), ..RopeForm::USUAL }),
];
