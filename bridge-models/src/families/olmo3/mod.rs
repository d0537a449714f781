//! OLMo 3: an OLMo 2 with a window in three of four layers, whose rotary frequencies are not
//! scaled there.

#[cfg(test)]
mod tests;

use super::olmo2::LAYERS;
use super::prelude::*;
use super::{llama, olmo2, qwen3};
use crate::huggingface::rope::ByLayerType;

pub(super) static FAMILY: Family = Family {
    model_type: "olmo3",
    architecture: "Olmo3ForCausalLM",
    settings: SETTINGS,
    weights: &[olmo2::NORMS, qwen3::QK_NORMS, llama::WEIGHTS],
    ..Family::USUAL
};

const THETA: f64 = 500_000.0;

/// `rope_theta` beside the tables is that of full layers alone.
const FORM: ByLayerType = ByLayerType {
    full: RopeForm { theta: THETA, original_length: OriginalLength::InTable, ..RopeForm::USUAL },
    local_theta: THETA,
    local_key: None,
};

/// Settings; absent ones have the values of `Olmo3Config`.
const SETTINGS: &[Setting] = &[
    Setting::Rows(LAYERS),
    Setting::Keys { read: |fields, c| windows::read_pattern(fields, c, 4096, 4), write: windows::write_pattern },
    Setting::Group(&FORM),
];
