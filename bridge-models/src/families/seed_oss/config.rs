//! Settings of Seed-OSS; absent ones have the values of `SeedOssConfig`.

use crate::families::prelude::*;

pub(super) const SETTINGS: &[Setting] = &[
    Setting::Rows(SIZES),
    Setting::KeyValueHeads(8),
    HEAD_SIZE_128,
    size_or("max_position_embeddings", |c| &mut c.max_position_embeddings, |_, _| Ok(524_288)),
    Setting::Rows(BLOCKS),
    // Only training uses the dropout rates, which are not zero by default.
    Setting::Number("attention_dropout", |c| &mut c.attention_dropout, |_, _| Ok(0.1)),
    Setting::Number("residual_dropout", |c| &mut c.hidden_dropout, |_, _| Ok(0.1)),
    Setting::Switch("attention_bias", |c| &mut c.qkv_bias, true),
    Setting::Switch("attention_out_bias", |c| &mut c.proj_bias, false),
    Setting::Switch("mlp_bias", |c| &mut c.mlp_bias, false),
    Setting::Number("rms_norm_eps", |c| &mut c.norm.epsilon, |_, _| Ok(1e-6)),
    Setting::Switch("tie_word_embeddings", |c| &mut c.share_embeddings_and_output_weights, false),
    ROPE,
];

/// Size of a head: 128 without the key, and the hidden size over the number of heads if it is null.
pub(crate) const HEAD_SIZE_128: Setting = Setting::Keys {
    read: |fields, c| match fields.has("head_dim") {
        true => HEAD_SIZE.read(fields, c),
        false => {
            c.kv_channels = 128;
            Ok(())
        }
    },
    write: |c, settings| HEAD_SIZE.write(&mut c.clone(), settings),
};
