//! `[dpo]`: rules.

use super::Draft;

/// Rules of training on preferences.
pub(super) fn check(draft: &mut Draft<'_>) {
    if draft.recipe.dpo.is_none() {
        return;
    }
    let kind = draft.recipe.dataset.kind.clone();
    draft.require(
        kind == "finetuning",
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
