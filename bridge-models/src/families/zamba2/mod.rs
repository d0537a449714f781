//! Zamba2: Mamba-2 layers, to some of whose inputs transformer blocks are added that layers share,
//! with low-rank branches of each layer's own.

mod config;
#[cfg(test)]
mod tests;
mod weights;

use super::llama;
use crate::huggingface::Family;

pub(super) static FAMILY: Family = Family {
    model_type: "zamba2",
    architecture: "Zamba2ForCausalLM",
    settings: config::SETTINGS,
    weights: &[weights::PLAIN, weights::WITH_SHARED, weights::BLOCK, weights::BRANCHES, llama::WEIGHTS],
    buffers: &[],
    aliases: &[("layer_types", "layers_block_type"), ("head_dim", "attention_head_dim")],
    ..Family::USUAL
};
