//! GLM-4.7-Flash: DeepSeek-V3's latent attention, router and layers of multi-token prediction, with
//! dense layers that the file names.

pub(super) mod config;
#[cfg(test)]
mod tests;

use super::deepseek_v3;
use crate::huggingface::Family;

pub(super) static FAMILY: Family = Family {
    model_type: "glm4_moe_lite",
    architecture: "Glm4MoeLiteForCausalLM",
    settings: config::SETTINGS,
    weights: deepseek_v3::WEIGHTS,
    aliases: &[
        ("num_local_experts", "n_routed_experts"),
        ("head_dim", "qk_rope_head_dim"),
        ("num_mtp_layers", "num_nextn_predict_layers"),
    ],
    ..Family::USUAL
};
