//! Settings of Mistral; absent ones have the values of `MistralConfig`. A folder with `layer_types`
//! is a `ministral` for transformers, and so it is here.

use crate::families::prelude::*;

pub(super) const SETTINGS: &[Setting] =
    &[Setting::Rows(LAYERS), Setting::Keys { read: read_window, write: write_window }];

/// Settings of all but the window.
pub(crate) const LAYERS: &[Setting] = &[
    Setting::Rows(SIZES),
    Setting::KeyValueHeads(8),
    HEAD_SIZE,
    size_or("max_position_embeddings", |c| &mut c.max_position_embeddings, |_, _| Ok(131_072)),
    Setting::Rows(BLOCKS),
    Setting::Number("rms_norm_eps", |c| &mut c.norm.epsilon, |_, _| Ok(1e-6)),
    Setting::Switch("tie_word_embeddings", |c| &mut c.share_embeddings_and_output_weights, false),
    ROPE,
];

/// No layer is without the window unless `layer_types` says so.
pub(crate) fn read_window(fields: &Fields, config: &mut DecoderConfig) -> Result<(), HfError> {
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
