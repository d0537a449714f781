//! MiMo-V2-Flash: layers with a sliding window, sinks and twice the key/value heads between full
//! ones, values of another size than keys, and experts behind a sigmoid router. Layers of
//! multi-token prediction in published files are ignored, as in transformers.

mod config;
#[cfg(test)]
mod tests;
mod weights;

use super::{llama, mixture};
use crate::huggingface::Family;

pub(super) static FAMILY: Family = Family {
    model_type: "mimo_v2_flash",
    architecture: "MiMoV2FlashForCausalLM",
    settings: config::SETTINGS,
    weights: &[weights::SINKS, mixture::SHARED, mixture::APART, mixture::STACKED, llama::weights::WEIGHTS],
    module_names: &[(".attention_sink_bias", ".sinks")],
    dropped: &["model.mtp."],
    aliases: &[("num_local_experts", "n_routed_experts"), ("layernorm_epsilon", "rms_norm_eps")],
    ..Family::USUAL
};
