//! ERNIE 4.5 with experts: shared and routed ones in some layers, chosen by probabilities with a
//! bias, and heads that are rotated in neighbouring pairs.

mod config;
#[cfg(test)]
mod tests;
mod weights;

use super::{llama, mixture, phi};
use crate::huggingface::Family;

pub(super) static FAMILY: Family = Family {
    model_type: "ernie4_5_moe",
    architecture: "Ernie4_5_MoeForCausalLM",
    settings: config::SETTINGS,
    weights: &[
        weights::OWN,
        mixture::SHARED,
        mixture::APART,
        mixture::STACKED,
        phi::weights::OUTPUT_BIAS,
        llama::weights::WEIGHTS,
    ],
    module_names: &[("mlp.moe_statics.", "mlp.gate.moe_statics.")],
    dropped: &["model.mtp_", "mtp."],
    aliases: &[("num_experts", "moe_num_experts"), ("num_experts_per_tok", "moe_k")],
    ..Family::USUAL
};
