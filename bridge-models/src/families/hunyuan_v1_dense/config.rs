//! Settings of dense Hunyuan models; absent ones have the values of `HunYuanDenseV1Config`.

use crate::families::prelude::*;

/// `alpha` in a table of type `dynamic` is a growth of the base.
const FORM: RopeForm = RopeForm { ntk_alpha: true, ..RopeForm::USUAL };

/// All settings but those of experts.
pub(crate) const SETTINGS: &[Setting] = &[
    Setting::Rows(SIZES),
    HEAD_SIZE,
    size_or("max_position_embeddings", |c| &mut c.max_position_embeddings, |_, _| Ok(2048)),
    Setting::Always(|c| (c.qk_layernorm, c.qk_layernorm_after_rope) = (true, true)),
    Setting::Rows(BLOCKS),
    Setting::Rows(ATTENTION_BIAS),
    Setting::Number("rms_norm_eps", |c| &mut c.norm.epsilon, |_, _| Ok(1e-5)),
    Setting::Switch("tie_word_embeddings", |c| &mut c.share_embeddings_and_output_weights, false),
    Setting::Group(&FORM),
    Setting::Unused(&["eod_token_id"]),
];
