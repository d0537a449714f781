//! Settings of StarCoder 2; absent ones have the values of `Starcoder2Config`.

use crate::families::prelude::*;

pub(super) const SETTINGS: &[Setting] = &[
    Setting::Rows(SIZES),
    Setting::KeyValueHeads(2),
    HEAD_SIZE,
    size_or("max_position_embeddings", |c| &mut c.max_position_embeddings, |_, _| Ok(4096)),
    USUAL_SOFTMAX_SCALE,
    Setting::Always(|c| c.norm.kind = Normalization::LayerNorm),
    Setting::NamedActivation("hidden_act", |c| &mut c.activation, "gelu_pytorch_tanh"),
    Setting::Number("initializer_range", |c| &mut c.init_method_std, |_, _| Ok(0.018_042)),
    Setting::Number("norm_epsilon", |c| &mut c.norm.epsilon, |_, _| Ok(1e-5)),
    Setting::Switch("use_bias", |c| &mut c.qkv_bias, true),
    Setting::Always(|c| (c.proj_bias, c.mlp_bias) = (c.qkv_bias, c.qkv_bias)),
    Setting::Number("attention_dropout", |c| &mut c.attention_dropout, |_, _| Ok(0.0)),
    Setting::Number("residual_dropout", |c| &mut c.hidden_dropout, |_, _| Ok(0.0)),
    Setting::Number("embedding_dropout", |c| &mut c.embedding_dropout, |_, _| Ok(0.0)),
    Setting::Switch("tie_word_embeddings", |c| &mut c.share_embeddings_and_output_weights, true),
    ROPE,
    Setting::Keys { read: |fields, c| windows::read_of_all(fields, c, None), write: windows::write_of_all },
];
