//! OLMo Hybrid: linear attention by the gated delta rule in most layers, with norms before blocks;
//! OLMo 2's attention, with norms behind blocks, in the others.

mod config;
#[cfg(test)]
mod tests;
mod weights;

use super::{llama, olmo2, qwen3};
use crate::huggingface::Family;

pub(super) static FAMILY: Family = Family {
    model_type: "olmo_hybrid",
    architecture: "OlmoHybridForCausalLM",
    settings: config::SETTINGS,
    weights: &[weights::WEIGHTS, olmo2::weights::NORMS, qwen3::weights::QK_NORMS, llama::weights::WEIGHTS],
    module_names: &[
        (".attention_layer_norm.", ".input_layernorm."),
        (".feedforward_layer_norm.", ".post_attention_layernorm."),
    ],
    ..Family::USUAL
};
