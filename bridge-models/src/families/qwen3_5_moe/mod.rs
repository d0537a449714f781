//! Qwen 3.5 with experts, the language model: Qwen 3.5's attention and Qwen3-Next's experts in
//! every layer.

use super::mixture::experts;
use super::qwen3_next::{EXPERTS, HYBRID};
use super::rows::SIZES_BESIDE_MLP;
use super::{llama, mixture, qwen2_moe, qwen3, qwen3_5, qwen3_next};
use crate::huggingface::Family;
use crate::huggingface::settings::{Setting, size_or};

pub(super) static FAMILY: Family = Family {
    model_type: "qwen3_5_moe_text",
    architecture: "Qwen3_5MoeForCausalLM",
    settings: &[
        Setting::Rows(SIZES_BESIDE_MLP),
        Setting::KeyValueHeads(2),
        Setting::Rows(HYBRID),
        Setting::Rows(EXPERTS),
        size_or("num_experts_per_tok", |c| &mut experts(c).topk, 8),
        size_or("num_experts", |c| &mut experts(c).num_experts, 256),
        // No layer has a dense block, whose width would be this.
        Setting::Always(|c| c.ffn_hidden_size = experts(c).ffn_hidden_size),
    ],
    weights: &[
        qwen3_5::PROJECTION,
        qwen3_next::HYBRID_WEIGHTS,
        qwen2_moe::SHARED,
        qwen3::QK_NORMS,
        mixture::APART,
        mixture::STACKED,
        llama::WEIGHTS,
    ],
    dropped: &["mtp."],
    ..Family::USUAL
};
