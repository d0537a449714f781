//! Sarvam 105B: DeepSeek-V3 with other defaults. transformers runs it as DeepSeek-V3, whose class
//! its files name.

mod config;
#[cfg(test)]
mod tests;

use super::deepseek_v3;
use crate::huggingface::Family;

pub(super) static FAMILY: Family = Family {
    model_type: "sarvam_mla",
    architecture: "SarvamMLAForCausalLM",
    settings: config::SETTINGS,
    weights: deepseek_v3::WEIGHTS,
    aliases: &[
        ("num_local_experts", "n_routed_experts"),
        ("num_mtp_layers", "num_nextn_predict_layers"),
        ("num_experts", "n_routed_experts"),
        ("num_shared_experts", "n_shared_experts"),
    ],
    ..Family::USUAL
};
