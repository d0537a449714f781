//! LFM3: an LFM2 with norms before and after blocks, a gate on each head's output, and windows in
//! some of the layers with attention.

mod config;
#[cfg(test)]
mod tests;
mod weights;

use super::{lfm2, llama, pairs};
use crate::huggingface::Family;

pub(super) static FAMILY: Family = Family {
    model_type: "lfm3",
    architecture: "Lfm3ForCausalLM",
    settings: config::SETTINGS,
    weights: &[
        weights::OWN,
        lfm2::weights::MIXERS,
        lfm2::weights::FEED_FORWARD,
        // Biases of attention.
        pairs::MIXER_WEIGHTS,
        llama::weights::WEIGHTS,
    ],
    module_names: &[(".self_attn.gate_proj.", ".self_attn.g_proj.")],
    aliases: &[("rms_norm_eps", "norm_eps")],
    ..Family::USUAL
};
