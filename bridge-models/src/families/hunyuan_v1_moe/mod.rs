//! Hunyuan with experts (A13B): the dense model's attention, experts in every layer and a shared
//! one of the same size.

mod config;
#[cfg(test)]
mod tests;
mod weights;

use super::{hunyuan_v1_dense, llama, mixture};
use crate::huggingface::Family;

pub(super) static FAMILY: Family = Family {
    model_type: "hunyuan_v1_moe",
    architecture: "HunYuanMoEV1ForCausalLM",
    settings: config::SETTINGS,
    weights: &[
        weights::OWN,
        hunyuan_v1_dense::weights::QK_NORMS,
        mixture::APART,
        mixture::STACKED,
        llama::weights::WEIGHTS,
    ],
    aliases: &[("num_experts_per_tok", "moe_topk"), ("num_local_experts", "num_experts")],
    ..Family::USUAL
};
