//! DeepSeek-V4: attention to a window and to compressed entries, several residual streams, and
//! experts in every layer, which in the first layers a table has for each token.

mod config;
#[cfg(test)]
mod tests;
mod weights;

use super::{llama, mixture};
use crate::huggingface::Family;

pub(super) static FAMILY: Family = Family {
    model_type: "deepseek_v4",
    architecture: "DeepseekV4ForCausalLM",
    settings: config::SETTINGS,
    weights: &[weights::OWN, mixture::STACKED, llama::WEIGHTS],
    module_names: weights::IN_MODULE,
    dropped: &["mtp.", "model.mtp."],
    aliases: &[("num_local_experts", "n_routed_experts"), ("intermediate_size", "moe_intermediate_size")],
    ..Family::USUAL
};
