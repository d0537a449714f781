//! K-EXAONE: attention with norms of queries and keys per head, a sliding window in most layers and
//! no rotation in the others, dense layers, then experts behind a sigmoid router, and experts that
//! all tokens go through.

mod config;
#[cfg(test)]
mod tests;
mod weights;

use super::{llama, mixture, qwen3};
use crate::huggingface::Family;

pub(super) static FAMILY: Family = Family {
    model_type: "exaone_moe",
    architecture: "ExaoneMoeForCausalLM",
    settings: config::SETTINGS,
    weights: &[
        qwen3::weights::QK_NORMS,
        weights::BIAS,
        mixture::SHARED_IN_MODULE,
        mixture::SHARED,
        mixture::APART,
        mixture::STACKED,
        llama::weights::WEIGHTS,
    ],
    dropped: &["mtp."],
    ..Family::USUAL
};
