//! Settings of Cohere 2; absent ones have the values of `Cohere2Config`.

use crate::families::prelude::*;
use crate::huggingface::windows::WindowedRope;

pub(super) const SETTINGS: &[Setting] = &[
    Setting::Rows(LAYERS),
    Setting::Keys {
        read: |fields, c| {
            let pattern = fields.size("sliding_window_pattern")?.unwrap_or(4);
            windows::read_pattern(fields, c, 4096, pattern)
        },
        write: windows::write_pattern,
    },
    Setting::Group(&WindowedRope(RopeForm { interleaved: true, ..RopeForm::USUAL })),
];

/// Settings of the first generation too.
pub(crate) const LAYERS: &[Setting] = &[Setting::Rows(SIZES), HEAD_SIZE, Setting::Rows(ROWS_BESIDE_SIZES)];

/// [`LAYERS`] beside the sizes.
pub(crate) const ROWS_BESIDE_SIZES: &[Setting] = &[
    size_or("max_position_embeddings", |c| &mut c.max_position_embeddings, |_, _| Ok(8192)),
    Setting::Rows(BLOCKS),
    Setting::Always(|c| {
        c.norm.kind = Normalization::LayerNormNoBias;
        c.residual.blocks = BlockOrder::ParallelSharedNorm;
    }),
    Setting::Rows(ATTENTION_BIAS),
    Setting::Number("layer_norm_eps", |c| &mut c.norm.epsilon, |_, _| Ok(1e-5)),
    Setting::Number("logit_scale", |c| &mut c.logit_multiplier, |_, _| Ok(0.0625)),
    Setting::Switch("tie_word_embeddings", |c| &mut c.share_embeddings_and_output_weights, true),
];
