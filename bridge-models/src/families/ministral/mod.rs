//! Ministral: a Mistral whose layers differ in whether they have the sliding window.

#[cfg(test)]
mod tests;

use super::llama;
use super::mistral::{LAYERS, read_window};
use super::prelude::*;

pub(super) static FAMILY: Family = Family {
    model_type: "ministral",
    architecture: "MinistralForCausalLM",
    settings: SETTINGS,
    weights: &[llama::WEIGHTS],
    ..Family::USUAL
};

/// Settings; absent ones have the values of `MinistralConfig`.
const SETTINGS: &[Setting] =
    &[Setting::Rows(LAYERS), Setting::Keys { read: read_window, write: windows::write_pattern }];
