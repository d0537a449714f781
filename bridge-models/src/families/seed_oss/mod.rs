//! Seed-OSS: a Llama with biases of queries, keys and values, and with dropout after its blocks.

pub(super) mod config;
pub(super) mod gguf;
#[cfg(test)]
mod tests;

use super::llama;
use crate::huggingface::Family;

pub(super) static FAMILY: Family = Family {
    model_type: "seed_oss",
    architecture: "SeedOssForCausalLM",
    settings: config::SETTINGS,
    weights: &[llama::weights::WEIGHTS],
    ..Family::USUAL
};
