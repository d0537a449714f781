//! `[distillation]`: rules.

use super::Draft;

/// Rules of learning from a teacher.
pub(super) fn check(draft: &mut Draft<'_>) {
    let Some(settings) = draft.recipe.distillation.clone() else {
        return;
    };
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
