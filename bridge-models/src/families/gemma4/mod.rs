//! Gemma 4, the language model: full layers with heads of another size, keys and values that layers
//! share, vectors of each token for each layer, experts beside a dense block.

pub(super) mod config;
#[cfg(test)]
mod tests;
pub(super) mod weights;

use super::{gemma2, llama, qwen3};
use crate::huggingface::Family;

pub(super) static FAMILY: Family = Family {
    model_type: "gemma4_text",
    architecture: "Gemma4ForCausalLM",
    settings: config::SETTINGS,
    weights: &[weights::WEIGHTS, gemma2::NORMS, qwen3::QK_NORMS, llama::WEIGHTS],
    // Files have keys and values of layers that use those of others, too.
    buffers: &[
        ".rotary_emb.inv_freq",
        ".self_attn.k_proj.weight",
        ".self_attn.v_proj.weight",
        ".self_attn.k_norm.weight",
        ".self_attn.v_norm.weight",
    ],
    ..Family::USUAL
};
