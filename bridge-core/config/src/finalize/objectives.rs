//! Stage 4: the rules of `[peft]`, `[dpo]` and `[distillation]`.

use super::super::choice::{AdapterInit, BaseQuantization};
use super::super::kinds::FINETUNING;
use super::super::sections::PeftConfig;
use super::Draft;

/// Checks what is trained, and on what.
pub(super) fn check(draft: &mut Draft<'_>) {
    adapters(draft);
    preferences(draft);
    teacher(draft);
}

/// Rules of adapters.
fn adapters(draft: &mut Draft<'_>) {
    let Some(peft) = draft.recipe.peft.clone() else { return };
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

/// Rules of training on preferences.
fn preferences(draft: &mut Draft<'_>) {
    if draft.recipe.dpo.is_none() {
        return;
    }
    let kind = draft.recipe.dataset.kind.clone();
    draft.require(
        kind == FINETUNING,
        "dataset.kind",
        "must be \"finetuning\" with [dpo], whose data are lines of preferences",
    );
    draft.require(
        draft.recipe.checkpoint.pretrained_checkpoint.is_some(),
        "checkpoint.pretrained_checkpoint",
        "must be given with [dpo]: it is the reference",
    );
    let is_two_stacks = draft.recipe.model.kind == "t5";
    draft.forbid(is_two_stacks, "model.kind", "has no [dpo]: the encoder of the model would have to read the prompts");
    let dataset = &draft.recipe.dataset;
    let (is_packed, kwargs) = (dataset.packed_sequence_specs.is_some(), dataset.dataset_kwargs.clone());
    let why = "excludes [dpo]: the two answers of a pair are sequences of their own";
    draft.forbid(is_packed, "dataset.packed_sequence_specs", why);
    let why = "has no effect with [dpo], which reads `prompt`, `chosen` and `rejected`";
    draft.idle_if(kwargs.chat == Some(false), "dataset.dataset_kwargs.chat", why);
    let is_cut = draft.recipe.ddp.use_megatron_fsdp;
    let why = "excludes [dpo]: ranks would have to gather the reference as well, which is not built";
    draft.forbid(is_cut, "ddp.use_megatron_fsdp", why);
}

/// Rules of learning from a teacher.
fn teacher(draft: &mut Draft<'_>) {
    let Some(settings) = draft.recipe.distillation.clone() else { return };
    draft.require(settings.teacher.is_some(), "distillation.teacher", "must be given with [distillation]");
    let is_two_stacks = draft.recipe.model.kind == "t5";
    draft.forbid(
        is_two_stacks,
        "model.kind",
        "has no [distillation]: a teacher is a decoder, which has no encoder's text",
    );
    draft.require(
        settings.alpha != 0.0 || settings.hidden_weight > 0.0,
        "distillation.alpha",
        "must be above 0 without distillation.hidden_weight",
    );
}
