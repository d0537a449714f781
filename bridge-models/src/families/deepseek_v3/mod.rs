//! DeepSeek-V3: latent attention, a few dense layers, then experts in groups behind a sigmoid
//! router, and a shared expert for every token. Files may have layers of multi-token prediction
//! after all other layers. Only training runs them; transformers ignores them.

mod config;
#[cfg(test)]
mod tests;
mod weights;

use super::{llama, mixture};
use crate::huggingface::Family;

/// `DeepseekV3ForCausalLM`.
pub(super) static FAMILY: Family = Family {
    model_type: "deepseek_v3",
    architecture: "DeepseekV3ForCausalLM",
    settings: config::SETTINGS,
    weights: &[weights::WEIGHTS, mixture::APART, mixture::STACKED, llama::weights::WEIGHTS],
    prefix: "model.",
    buffers: &[".rotary_emb.inv_freq"],
    module_names: &[],
    dropped: &[],
    aliases: &[("num_local_experts", "n_routed_experts"), ("num_mtp_layers", "num_nextn_predict_layers")],
};
