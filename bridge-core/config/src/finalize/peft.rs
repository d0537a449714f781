//! `[peft]`: rules.

use super::super::choice::{AdapterInit, BaseQuantization};
use super::super::sections::PeftConfig;
use super::Draft;

/// Rules of adapters.
pub(super) fn check(draft: &mut Draft<'_>) {
    let Some(peft) = draft.recipe.peft.clone() else {
        return;
    };
    draft.require(
        draft.recipe.checkpoint.pretrained_checkpoint.is_some(),
        "checkpoint.pretrained_checkpoint",
        "must be given with [peft]",
    );
    draft.require(
        peft.canonical_mapping.is_empty() || peft.target_modules == PeftConfig::default().target_modules,
        "peft.canonical_mapping",
        "excludes peft.target_modules",
    );
    let zeros = [peft.lora_A_init_method, peft.lora_B_init_method].map(|method| method == AdapterInit::Zero);
    draft.require(
        zeros != [true, true],
        "peft.lora_A_init_method",
        "must not be zero with a B of zeros: nothing is learned",
    );
    let is_quantized = [peft.base_quantization, peft.base_quantization_embedding] != [BaseQuantization::None; 2];
    draft.require(
        !is_quantized || peft.base_quantization_block_size.is_multiple_of(2),
        "peft.base_quantization_block_size",
        "must be even: a byte holds two codes of 4 bits",
    );
}
