//! Settings of Arcee; absent ones have the values of `ArceeConfig`.

use crate::families::prelude::*;

pub(super) const SETTINGS: &[Setting] = &[
    Setting::Rows(LAYERS),
    Setting::Always(|c| c.norm.kind = Normalization::RmsNorm),
    Setting::Number("initializer_range", |c| &mut c.init_method_std, |_, _| Ok(0.02)),
    Setting::Number("rms_norm_eps", |c| &mut c.norm.epsilon, |_, _| Ok(1e-5)),
    ROPE,
];

/// Sizes, attention, and a feed-forward block without a gate: settings of Nemotron too.
pub(crate) const LAYERS: &[Setting] = &[
    Setting::Rows(SIZES),
    HEAD_SIZE,
    size_or("max_position_embeddings", |c| &mut c.max_position_embeddings, |_, _| Ok(4096)),
    USUAL_SOFTMAX_SCALE,
    Setting::Activation("hidden_act", |c| &mut c.activation, Activation::SquaredRelu),
    Setting::Number("attention_dropout", |c| &mut c.attention_dropout, |_, _| Ok(0.0)),
    Setting::Rows(ATTENTION_BIAS),
    Setting::Switch("mlp_bias", |c| &mut c.mlp_bias, false),
    Setting::Switch("tie_word_embeddings", |c| &mut c.share_embeddings_and_output_weights, false),
];
