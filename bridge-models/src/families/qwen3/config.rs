//! Settings of Qwen 3; absent ones have the values of `Qwen3Config`.

use crate::families::llama::config::LAYERS;
use crate::families::prelude::*;

pub(super) const SETTINGS: &[Setting] = &[
    Setting::Rows(SIZES),
    Setting::KeyValueHeads(32),
    size_or("head_dim", |c| &mut c.kv_channels, |_, _| Ok(128)),
    size_or("max_position_embeddings", |c| &mut c.max_position_embeddings, |_, _| Ok(32_768)),
    Setting::Always(|c| c.qk_layernorm = true),
    Setting::Rows(LAYERS),
    SLIDING_WINDOW_UPPER_LAYERS,
];

/// Sliding window that only the upper layers may have.
pub(crate) const SLIDING_WINDOW_UPPER_LAYERS: Setting = Setting::Keys { read: read_window, write: write_window };

/// A window of `sliding_window` tokens in the layers that `layer_types` names, or from number
/// `max_window_layers` on.
fn read_window(fields: &Fields, config: &mut DecoderConfig) -> Result<(), HfError> {
    let size = windows::switched_size(fields, Some(4096))?;
    windows::read_upper_layers(fields, config, size, 28)
}

fn write_window(config: &DecoderConfig, settings: &mut Map<String, Value>) {
    windows::write_switched(config, settings);
    if config.window_size.is_some() {
        let first = windows::windowed_layers(config).iter().position(|has_window| *has_window);
        settings.insert("max_window_layers".into(), json!(first.unwrap_or(config.num_layers)));
    }
}
