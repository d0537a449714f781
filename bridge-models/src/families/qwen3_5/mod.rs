//! Qwen 3.5 without experts, the language model: Qwen3-Next's attention, with a matrix for each
//! part of linear attention's projection.

use super::prelude::*;
use super::qwen3_next::HYBRID;
use super::rows::SIZES;
use super::{llama, qwen3, qwen3_next};
use crate::huggingface::settings::Setting;

pub(super) static FAMILY: Family = Family {
    model_type: "qwen3_5_text",
    architecture: "Qwen3_5ForCausalLM",
    settings: &[Setting::Rows(SIZES), Setting::KeyValueHeads(4), Setting::Rows(HYBRID)],
    weights: &[PROJECTION, qwen3_next::HYBRID_WEIGHTS, qwen3::QK_NORMS, llama::WEIGHTS],
    dropped: &["mtp."],
    ..Family::USUAL
};

/// Names of the parts of linear attention's projection.
pub(super) const PROJECTION: &[WeightRule] = &[layer!(
    "self_attention.in_proj.weight",
    "linear_attn.in_proj_qkv.weight",
    "linear_attn.in_proj_z.weight",
    "linear_attn.in_proj_b.weight",
    "linear_attn.in_proj_a.weight"
)
.fused(Fusion::Linear(&[LinearRows::Mixed, LinearRows::Values, LinearRows::Heads, LinearRows::Decays]))];
