//! Seed-OSS: a Llama with biases of queries, keys and values, and with dropout after its blocks.

pub(super) mod gguf;
#[cfg(test)]
mod tests;

use super::llama;
use super::prelude::*;

pub(super) static FAMILY: Family = Family {
    model_type: "seed_oss",
    architecture: "SeedOssForCausalLM",
    settings: SETTINGS,
    weights: &[llama::WEIGHTS],
    ..Family::USUAL
};

/// Settings; absent ones have the values of `SeedOssConfig`.
const SETTINGS: &[Setting] = &[
    Setting::Rows(SIZES),
    Setting::KeyValueHeads(8),
    Setting::Group(&HeadSizeOr(128)),
    positions(524_288),
    Setting::Rows(BLOCKS),
    // Only training uses the dropout rates, which are not zero by default.
    Setting::Number("attention_dropout", |c| &mut c.attention_dropout, 0.1),
    Setting::Number("residual_dropout", |c| &mut c.hidden_dropout, 0.1),
    Setting::Switch("attention_bias", |c| &mut c.qkv_bias, true),
    Setting::Switch("attention_out_bias", |c| &mut c.proj_bias, false),
    MLP_BIAS,
    rms_norm_epsilon(1e-6),
    tied_embeddings(false),
    ROPE,
];
