//! Gemma 3n, the language model: several residual streams of which a layer reads and writes one
//! (AltUp), a branch beside attention (LAuReL), sparse gates, and as in Gemma 4 keys and values
//! that layers share and vectors of each token for each layer.

mod config;
#[cfg(test)]
mod tests;
mod weights;

use super::{gemma2, gemma4, llama, qwen3};
use crate::huggingface::Family;

pub(super) static FAMILY: Family = Family {
    model_type: "gemma3n_text",
    architecture: "Gemma3nForCausalLM",
    settings: config::SETTINGS,
    weights: &[
        weights::STREAMS,
        gemma4::weights::WEIGHTS,
        gemma2::weights::NORMS,
        qwen3::weights::QK_NORMS,
        llama::weights::WEIGHTS,
    ],
    // Files have keys and values of layers that use those of others, too.
    buffers: gemma4::FAMILY.buffers,
    ..Family::USUAL
};
