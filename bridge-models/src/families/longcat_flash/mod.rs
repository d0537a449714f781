//! LongCat-Flash: layers of latent attention, each with a dense block; beside every other one stand
//! experts, some of them the identity, whose output is added a layer later.

mod config;
#[cfg(test)]
mod tests;
mod weights;

use super::llama;
use crate::huggingface::Family;

pub(super) static FAMILY: Family = Family {
    model_type: "longcat_flash",
    architecture: "LongcatFlashForCausalLM",
    settings: config::SETTINGS,
    weights: &[weights::OWN, llama::weights::WEIGHTS],
    dropped: &["model.mtp."],
    aliases: &[
        ("num_local_experts", "n_routed_experts"),
        ("num_experts_per_tok", "moe_topk"),
        ("intermediate_size", "ffn_hidden_size"),
        ("moe_intermediate_size", "expert_ffn_hidden_size"),
    ],
    ..Family::USUAL
};
