//! Settings of nanochat; absent ones have the values of `NanoChatConfig`.

use crate::families::prelude::*;

pub(super) const SETTINGS: &[Setting] = &[
    Setting::Rows(SIZES),
    HEAD_SIZE,
    size_or("max_position_embeddings", |c| &mut c.max_position_embeddings, |_, _| Ok(2048)),
    Setting::Rows(BLOCKS),
    Setting::Always(|c| {
        (c.gated_linear_unit, c.norm.affine, c.embedding_norm) = (false, false, true);
        (c.qk_layernorm, c.qk_layernorm_after_rope) = (true, true);
    }),
    Setting::NamedActivation("hidden_act", |c| &mut c.activation, "relu2"),
    Setting::Rows(ATTENTION_BIAS),
    Setting::Number("rms_norm_eps", |c| &mut c.norm.epsilon, |_, _| Ok(1e-6)),
    Setting::NumberOrNone("final_logit_softcapping", |c| &mut c.logit_softcap, Some(15.0)),
    Setting::Switch("tie_word_embeddings", |c| &mut c.share_embeddings_and_output_weights, false),
    Setting::Group(&RopeForm { reversed: true, ..RopeForm::USUAL }),
];
