//! Nemotron-H: layers of one block each, state space, attention without positions, a feed-forward
//! block, or experts.

mod config;
#[cfg(test)]
mod tests;
mod weights;

use crate::huggingface::Family;

pub(super) static FAMILY: Family = Family {
    model_type: "nemotron_h",
    architecture: "NemotronHForCausalLM",
    settings: config::SETTINGS,
    weights: &[weights::WEIGHTS, weights::APART, weights::STACKED, weights::OUTPUT],
    buffers: &[],
    module_names: &[("backbone.", "model.")],
    dropped: &["mtp."],
    aliases: &[("layer_types", "layers_block_type"), ("num_local_experts", "n_routed_experts")],
    ..Family::USUAL
};
