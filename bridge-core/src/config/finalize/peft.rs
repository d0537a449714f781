//! `[peft]`: rules.

use super::super::choice::{AdapterInit, DropoutPosition, PeftKind};
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
    let names_layers = !peft.target_modules.is_empty() || !peft.canonical_mapping.is_empty();
    draft.require(
        !names_layers || peft.exclude_modules.is_empty(),
        "peft.exclude_modules",
        "excludes peft.target_modules and peft.canonical_mapping: set peft.target_modules = [] to adapt all other layers",
    );
    draft.require(
        peft.canonical_mapping.is_empty() || peft.target_modules == PeftConfig::default().target_modules,
        "peft.canonical_mapping",
        "excludes peft.target_modules",
    );
    let is_post = peft.dropout_position == DropoutPosition::Post;
    let is_lora = peft.kind == PeftKind::Lora;
    draft.require(is_lora || !is_post, "peft.dropout_position", "must be pre with kind = \"dora\"");
    draft.require(!is_post || peft.dropout > 0.0, "peft.dropout_position", "has no effect without peft.dropout");
    draft.require(is_lora || !peft.normalize_moe_lora, "peft.normalize_moe_lora", "must be false with kind = \"dora\"");
    let zeros = [peft.lora_A_init_method, peft.lora_B_init_method].map(|method| method == AdapterInit::Zero);
    draft.require(
        zeros != [true, true],
        "peft.lora_A_init_method",
        "must not be zero with a B of zeros: nothing is learned",
    );
}
