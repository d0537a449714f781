//! VaultGemma: a Gemma 2 without norms behind blocks.

use super::gemma2::CAPPED;
use super::{gemma2, llama};
use crate::huggingface::Family;

pub(super) static FAMILY: Family = Family {
    model_type: "vaultgemma",
    architecture: "VaultGemmaForCausalLM",
    // Absent settings have the values of `VaultGemmaConfig`, which are Gemma 2's.
    settings: CAPPED,
    weights: &[gemma2::NORMS, llama::WEIGHTS],
    ..Family::USUAL
};
