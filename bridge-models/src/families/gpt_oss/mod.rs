//! GPT-OSS: experts with biases and a clamped gate in every layer, attention with sinks, and a
//! window in every other layer.

pub(super) mod config;
#[cfg(test)]
mod tests;
mod weights;

use super::llama;
use crate::huggingface::Family;

pub(super) static FAMILY: Family = Family {
    model_type: "gpt_oss",
    architecture: "GptOssForCausalLM",
    settings: config::SETTINGS,
    weights: &[weights::WEIGHTS, llama::weights::WEIGHTS],
    aliases: &[("num_experts", "num_local_experts")],
    ..Family::USUAL
};
