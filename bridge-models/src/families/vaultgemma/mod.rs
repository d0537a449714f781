//! VaultGemma: a Gemma 2 without norms behind blocks.

mod config;

use super::{gemma2, llama};
use crate::huggingface::Family;

pub(super) static FAMILY: Family = Family {
    model_type: "vaultgemma",
    architecture: "VaultGemmaForCausalLM",
    settings: config::SETTINGS,
    weights: &[gemma2::weights::NORMS, llama::weights::WEIGHTS],
    ..Family::USUAL
};
