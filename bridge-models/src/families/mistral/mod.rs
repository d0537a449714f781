//! Mistral: a Llama without biases whose layers all have the same sliding window, or none.

pub(super) mod gguf;
#[cfg(test)]
mod tests;

use super::llama;
use super::prelude::*;

pub(super) static FAMILY: Family = Family {
    model_type: "mistral",
    architecture: "MistralForCausalLM",
    settings: SETTINGS,
    weights: &[llama::WEIGHTS],
    ..Family::USUAL
};

/// Settings; absent ones have the values of `MistralConfig`. A folder with `layer_types` is a
/// `ministral` for transformers, and so it is here.
const SETTINGS: &[Setting] = &[Setting::Rows(LAYERS), Setting::Keys { read: read_window, write: write_window }];

/// Settings of all but the window.
pub(super) const LAYERS: &[Setting] = &[
    Setting::Rows(SIZES),
    Setting::KeyValueHeads(8),
    HEAD_SIZE,
    positions(131_072),
    Setting::Rows(BLOCKS),
    rms_norm_epsilon(1e-6),
    tied_embeddings(false),
    ROPE,
];

/// No layer is without the window unless `layer_types` says so.
pub(super) fn read_window(fields: &Fields, config: &mut DecoderConfig) -> Result<(), HfError> {
    windows::read_pattern(fields, config, 4096, usize::MAX)
}

/// `layer_types` only where layers differ: with it transformers reads the folder as a `ministral`.
fn write_window(config: &DecoderConfig, settings: &mut Map<String, Value>) {
    let layers = windows::windowed_layers(config);
    match layers.contains(&true) && layers.contains(&false) {
        true => windows::write_pattern(config, settings),
        false => windows::write_of_all(config, settings),
    }
}
