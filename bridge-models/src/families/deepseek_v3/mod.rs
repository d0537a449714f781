//! DeepSeek-V3: latent attention, a few dense layers, then experts in groups behind a sigmoid
//! router, and a shared expert for every token. Files may have layers of multi-token prediction
//! after all other layers. Only training runs them; transformers ignores them.

pub(super) mod config;
#[cfg(test)]
mod tests;
pub(super) mod weights;

use super::{llama, mixture};
use crate::huggingface::Family;
use crate::huggingface::weight_map::WeightRule;

pub(super) static FAMILY: Family = Family {
    model_type: "deepseek_v3",
    architecture: "DeepseekV3ForCausalLM",
    settings: config::SETTINGS,
    weights: WEIGHTS,
    aliases: ALIASES,
    ..Family::USUAL
};

/// Names of all parameters.
pub(in crate::families) const WEIGHTS: &[&[WeightRule]] = &[
    weights::PREDICTED_LAYERS,
    weights::LATENT_ATTENTION,
    mixture::SHARED,
    mixture::APART,
    mixture::STACKED,
    llama::WEIGHTS,
];

/// Other names of settings.
pub(in crate::families) const ALIASES: &[(&str, &str)] =
    &[("num_local_experts", "n_routed_experts"), ("num_mtp_layers", "num_nextn_predict_layers")];
