//! DeepSeek-V2: latent attention, a few dense layers, then experts behind a softmax router, which
//! may choose in groups, and experts that all tokens go through.

mod config;
#[cfg(test)]
mod tests;

use super::deepseek_v3;
use crate::huggingface::Family;

pub(super) static FAMILY: Family = Family {
    model_type: "deepseek_v2",
    architecture: "DeepseekV2ForCausalLM",
    settings: config::SETTINGS,
    weights: deepseek_v3::WEIGHTS,
    aliases: &[("num_experts", "n_routed_experts")],
    ..Family::USUAL
};
