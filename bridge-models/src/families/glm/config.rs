//! Settings of GLM; absent ones have the values of `GlmConfig`. GLM-4 shares all rows.

use crate::families::prelude::*;

const FORM: RopeForm = RopeForm { percent: Some(0.5), interleaved: true, ..RopeForm::USUAL };

pub(crate) const SETTINGS: &[Setting] = &[
    Setting::Rows(SIZES),
    Setting::KeyValueHeads(2),
    size_or("head_dim", |c| &mut c.kv_channels, |_, _| Ok(128)),
    size_or("max_position_embeddings", |c| &mut c.max_position_embeddings, |_, _| Ok(131_072)),
    Setting::Rows(BLOCKS),
    Setting::Switch("attention_bias", |c| &mut c.qkv_bias, true),
    Setting::Number("rms_norm_eps", |c| &mut c.norm.epsilon, |_, _| Ok(1.5625e-7)),
    Setting::Switch("tie_word_embeddings", |c| &mut c.share_embeddings_and_output_weights, false),
    Setting::Group(&FORM),
];
