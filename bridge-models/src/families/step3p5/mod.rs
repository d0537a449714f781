//! Step 3.5 and the language model of Step 3.7: gates on heads, other numbers of query heads and
//! another rotation in layers with a sliding window, units with bounds by layer, and experts behind
//! a sigmoid router. Layers of multi-token prediction in published files are ignored, as in
//! transformers.

mod config;
mod layers;
#[cfg(test)]
mod tests;
mod weights;

use super::{llama, mixture, qwen3};
use crate::huggingface::Family;

pub(super) static FAMILY: Family = Family {
    model_type: "step3p5",
    architecture: "Step3p5ForCausalLM",
    settings: config::SETTINGS,
    weights: &[
        qwen3::weights::QK_NORMS,
        weights::ON_DISK,
        mixture::STACKED,
        mixture::SHARED_IN_MODULE,
        llama::weights::WEIGHTS,
    ],
    module_names: &[(".share_expert.", ".mlp.shared_experts."), (".moe.", ".mlp.")],
    dropped: &["model.layers.45.", "model.layers.46.", "model.layers.47."],
    aliases: &[
        ("num_local_experts", "n_routed_experts"),
        ("num_attention_groups", "num_key_value_heads"),
        ("moe_num_experts", "n_routed_experts"),
        ("moe_top_k", "num_experts_per_tok"),
        ("share_expert_dims", "share_expert_dim"),
        ("num_mtp_layers", "num_nextn_predict_layers"),
    ],
    ..Family::USUAL
};
