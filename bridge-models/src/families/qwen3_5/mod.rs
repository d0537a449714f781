//! Qwen 3.5 without experts, the language model: Qwen3-Next's attention, with a matrix for each
//! part of linear attention's projection.

pub(super) mod weights;

use super::llama::config::SIZES;
use super::qwen3_next::config::HYBRID;
use super::{llama, qwen3, qwen3_next};
use crate::huggingface::Family;
use crate::huggingface::settings::Setting;

pub(super) static FAMILY: Family = Family {
    model_type: "qwen3_5_text",
    architecture: "Qwen3_5ForCausalLM",
    settings: &[Setting::Rows(SIZES), Setting::KeyValueHeads(4), Setting::Rows(HYBRID)],
    weights: &[weights::PROJECTION, qwen3_next::weights::HYBRID, qwen3::weights::QK_NORMS, llama::weights::WEIGHTS],
    dropped: &["mtp."],
    ..Family::USUAL
};
