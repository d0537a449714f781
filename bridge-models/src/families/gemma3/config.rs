//! Settings of Gemma 3; absent ones have the values of `Gemma3TextConfig`.

use crate::families::gemma2::config::LAYERS;
use crate::families::prelude::*;
use crate::huggingface::rope::ByLayerType;

const FORM: ByLayerType = ByLayerType {
    full: RopeForm { theta: 1_000_000.0, original_length: OriginalLength::InTable, ..RopeForm::USUAL },
    local_theta: 10_000.0,
    local_key: Some("rope_local_base_freq"),
};

pub(super) const SETTINGS: &[Setting] = &[
    Setting::Rows(SIZES),
    Setting::Rows(LAYERS),
    size_or("max_position_embeddings", |c| &mut c.max_position_embeddings, |_, _| Ok(131_072)),
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
