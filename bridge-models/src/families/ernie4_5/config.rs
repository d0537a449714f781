//! Settings of ERNIE 4.5; absent ones have the values of `Ernie4_5Config`.

use crate::families::prelude::*;
use crate::families::seed_oss::config::HEAD_SIZE_128;

const FORM: RopeForm = RopeForm { theta: 500_000.0, interleaved: true, ..RopeForm::USUAL };

pub(super) const SETTINGS: &[Setting] = &[
    Setting::Rows(SIZES),
    Setting::KeyValueHeads(2),
    HEAD_SIZE_128,
    size_or("max_position_embeddings", |c| &mut c.max_position_embeddings, |_, _| Ok(131_072)),
    Setting::Rows(BLOCKS),
    Setting::Switch("use_bias", |c| &mut c.qkv_bias, false),
    Setting::Always(|c| (c.proj_bias, c.mlp_bias) = (c.qkv_bias, c.qkv_bias)),
    Setting::Number("rms_norm_eps", |c| &mut c.norm.epsilon, |_, _| Ok(1e-5)),
    Setting::Switch("tie_word_embeddings", |c| &mut c.share_embeddings_and_output_weights, true),
    POSITIONS,
];

/// Rotation of neighbouring pairs by positions that are not divided.
pub(crate) const POSITIONS: Setting = Setting::Rows(&[
    Setting::Group(&FORM),
    // A divisor of positions in the files' own code.
    Setting::Rule(|fields, _| {
        let ratio = fields.number("compression_ratio")?.unwrap_or(1.0);
        fields.require(ratio == 1.0, "compression_ratio", &ratio.to_string(), "1: others are not implemented")
    }),
]);
