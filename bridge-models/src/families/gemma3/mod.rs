//! Gemma 3, the language model: Gemma 2 with norms of queries and keys, and with a rotary base of
//! its own in windowed layers.

#[cfg(test)]
mod tests;

use super::gemma2::LAYERS;
use super::prelude::*;
use super::{gemma2, llama, qwen3};
use crate::huggingface::rope::ByLayerType;

pub(super) static FAMILY: Family = Family {
    model_type: "gemma3_text",
    architecture: "Gemma3ForCausalLM",
    settings: SETTINGS,
    weights: &[gemma2::NORMS, qwen3::QK_NORMS, llama::WEIGHTS],
    buffers: &[".rotary_emb.inv_freq", ".rotary_emb_local.inv_freq"],
    ..Family::USUAL
};

/// Tables by type of layer, or the base of windowed layers beside one table.
pub(super) const FORM: ByLayerType = ByLayerType {
    full: RopeForm { theta: 1_000_000.0, original_length: OriginalLength::InTable, ..RopeForm::USUAL },
    local_theta: 10_000.0,
    local_key: Some("rope_local_base_freq"),
};

/// Settings; absent ones have the values of `Gemma3TextConfig`.
const SETTINGS: &[Setting] = &[
    Setting::Rows(SIZES),
    Setting::Rows(LAYERS),
    positions(131_072),
    Setting::Always(|c| {
        c.residual.norms = NormPlacement::Sandwich;
        c.qk_layernorm = true;
    }),
    Setting::Keys {
        read: |fields, c| {
            // `_sliding_window_pattern`, which is in files too, transformers does not read.
            let pattern = fields.size("sliding_window_pattern")?;
            windows::read_pattern(fields, c, 4096, pattern.unwrap_or(6))
        },
        write: windows::write_pattern,
    },
    Setting::Group(&FORM),
    Setting::NumberOrNone("final_logit_softcapping", |c| &mut c.logit_softcap, None),
    Setting::Unused(&["_sliding_window_pattern"]),
];
