//! EXAONE 4: a Llama whose norms are after its blocks, whose queries and keys are normalized per
//! head, and which rotates windowed layers only, if it has any.

pub(super) mod gguf;
#[cfg(test)]
mod tests;

use super::prelude::*;
use super::{llama, olmo2, qwen3};

pub(super) static FAMILY: Family = Family {
    model_type: "exaone4",
    architecture: "Exaone4ForCausalLM",
    settings: SETTINGS,
    weights: &[olmo2::NORMS, qwen3::QK_NORMS, llama::WEIGHTS],
    ..Family::USUAL
};

/// Settings; absent ones have the values of `Exaone4Config`.
const SETTINGS: &[Setting] = &[
    Setting::Rows(SIZES),
    Setting::KeyValueHeads(32),
    HEAD_SIZE,
    positions(2048),
    Setting::Always(|c| {
        c.residual.norms = NormPlacement::Output;
        c.qk_layernorm = true;
    }),
    Setting::Rows(BLOCKS),
    rms_norm_epsilon(1e-5),
    tied_embeddings(false),
    Setting::Group(&RopeForm::USUAL),
    WINDOWS,
];

/// Windowed layers. If there is a window, full layers have no positions.
const WINDOWS: Setting = Setting::Keys { read: read_windows, write: write_windows };

/// Default of `sliding_window`.
const SIZE: usize = 4096;

fn read_windows(fields: &Fields, config: &mut DecoderConfig) -> Result<(), HfError> {
    let size = if fields.has(windows::SIZE) { fields.size(windows::SIZE)? } else { Some(SIZE) };
    let usual = pattern(fields, config.num_layers)?;
    let layers = windows::layer_types(fields, config.num_layers)?.unwrap_or(usual);
    if size.is_none() {
        return Ok(());
    }
    windows::set(config, size, layers.clone());
    windows::set_unrotated(config, layers.into_iter().map(|has_window| !has_window).collect());
    Ok(())
}

/// True for each windowed layer by `sliding_window_pattern`: all but each N-th, or letters L
/// (local) and G (global) that repeat, where the last layer is always global.
fn pattern(fields: &Fields, num_layers: usize) -> Result<Vec<bool>, HfError> {
    let key = "sliding_window_pattern";
    let every = |interval: usize| (1..=num_layers).map(|number| !number.is_multiple_of(interval)).collect();
    let Some(value) = fields.get(key) else {
        return Ok(if fields.has(key) { vec![false; num_layers] } else { every(4) });
    };
    let Some(letters) = value.as_str() else {
        return Ok(if value.as_u64() == Some(0) {
            vec![false; num_layers]
        } else {
            every(fields.size(key)?.unwrap_or(4))
        });
    };
    let is_known = !letters.is_empty() && letters.chars().all(|letter| matches!(letter, 'L' | 'G'));
    fields.require(is_known, key, &value.to_string(), "a number, or letters L and G")?;
    let is_local = letters.chars().map(|letter| letter == 'L').cycle().take(num_layers);
    Ok(is_local.enumerate().map(|(layer, is_local)| is_local && layer + 1 < num_layers).collect())
}

fn write_windows(config: &DecoderConfig, settings: &mut Map<String, Value>) {
    windows::write_pattern(config, settings);
    if config.window_size.is_none() {
        let size = (config.position_embedding == PositionEmbedding::None).then_some(SIZE);
        settings.insert(windows::SIZE.into(), json!(size));
    }
}
