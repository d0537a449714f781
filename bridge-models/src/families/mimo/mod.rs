//! MiMo-7B: a Qwen 2 whose files have layers of multi-token prediction, which are left out.

#[cfg(test)]
mod tests;

use super::prelude::*;
use super::{llama, qwen2};

pub(super) static FAMILY: Family = Family {
    model_type: "mimo",
    architecture: "MiMoForCausalLM",
    settings: SETTINGS,
    weights: &[llama::WEIGHTS],
    dropped: &["model.mtp_layers."],
    ..Family::USUAL
};

/// Settings; absent ones have the values of `Qwen2Config`, from which its own class descends.
const SETTINGS: &[Setting] = &[
    Setting::Rows(qwen2::SETTINGS),
    Setting::Only("attention_bias", || json!(true)),
    Setting::Unused(&["num_nextn_predict_layers"]),
];
