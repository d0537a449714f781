//! ERNIE 4.5 without experts: a Llama with one switch for the biases of all linear layers, whose
//! heads are rotated in neighbouring pairs.

pub(super) mod gguf;
#[cfg(test)]
mod tests;

use super::llama;
use super::prelude::*;

pub(super) static FAMILY: Family = Family {
    model_type: "ernie4_5",
    architecture: "Ernie4_5ForCausalLM",
    settings: SETTINGS,
    weights: &[llama::WEIGHTS],
    ..Family::USUAL
};

/// Settings; absent ones have the values of `Ernie4_5Config`.
const SETTINGS: &[Setting] = &[
    Setting::Rows(SIZES),
    Setting::KeyValueHeads(2),
    Setting::Group(&HeadSizeOr(128)),
    positions(131_072),
    Setting::Rows(BLOCKS),
    Setting::Switch("use_bias", |c| &mut c.qkv_bias, false),
    Setting::Always(|c| (c.proj_bias, c.mlp_bias) = (c.qkv_bias, c.qkv_bias)),
    rms_norm_epsilon(1e-5),
    tied_embeddings(true),
    POSITIONS,
];

/// Rotation of neighbouring pairs by positions that are not divided.
pub(super) const POSITIONS: Setting = Setting::Rows(&[
    Setting::Group(&RopeForm { theta: 500_000.0, interleaved: true, ..RopeForm::USUAL }),
    // A divisor of positions in the files' own code.
    Setting::Rule(|fields, _| {
        let ratio = fields.number("compression_ratio")?.unwrap_or(1.0);
        fields.require(ratio == 1.0, "compression_ratio", &ratio.to_string(), "1: others are not implemented")
    }),
]);
