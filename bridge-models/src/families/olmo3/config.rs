//! Settings of OLMo 3; absent ones have the values of `Olmo3Config`.

use crate::families::olmo2::config::LAYERS;
use crate::families::prelude::*;
use crate::huggingface::rope::ByLayerType;

const THETA: f64 = 500_000.0;

/// `rope_theta` beside the tables is that of full layers alone.
const FORM: ByLayerType = ByLayerType {
    full: RopeForm { theta: THETA, original_length: OriginalLength::InTable, ..RopeForm::USUAL },
    local_theta: THETA,
    local_key: None,
};

pub(super) const SETTINGS: &[Setting] = &[
    Setting::Rows(LAYERS),
    Setting::Keys { read: |fields, c| windows::read_pattern(fields, c, 4096, 4), write: windows::write_pattern },
    Setting::Group(&FORM),
];
