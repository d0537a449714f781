//! Cohere 2 (Command R7B, Command A): blocks side by side that read one norm, no biases in norms,
//! and rotation in windowed layers only.

#[cfg(test)]
mod tests;

use super::llama;
use super::prelude::*;
use crate::huggingface::windows::WindowedRope;

pub(super) static FAMILY: Family = Family {
    model_type: "cohere2",
    architecture: "Cohere2ForCausalLM",
    settings: SETTINGS,
    weights: &[llama::WEIGHTS],
    ..Family::USUAL
};

/// Settings; absent ones have the values of `Cohere2Config`.
const SETTINGS: &[Setting] = &[
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
pub(super) const LAYERS: &[Setting] = &[Setting::Rows(SIZES), HEAD_SIZE, Setting::Rows(ROWS_BESIDE_SIZES)];

/// [`LAYERS`] beside the sizes.
pub(super) const ROWS_BESIDE_SIZES: &[Setting] = &[
    positions(8192),
    Setting::Rows(BLOCKS),
    Setting::Always(|c| {
        c.norm.kind = Normalization::LayerNormNoBias;
        c.residual.blocks = BlockOrder::ParallelSharedNorm;
    }),
    Setting::Rows(ATTENTION_BIAS),
    Setting::Number("layer_norm_eps", |c| &mut c.norm.epsilon, 1e-5),
    Setting::Number("logit_scale", |c| &mut c.logit_multiplier, 0.0625),
    tied_embeddings(true),
];
