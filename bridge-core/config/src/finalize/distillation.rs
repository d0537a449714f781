//! `[distillation]`: rules.

use super::super::run_config::ParallelSizes;
use super::Draft;

/// Rules of learning from a teacher.
pub(super) fn check(draft: &mut Draft<'_>, parallel: &ParallelSizes) {
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
    let has_cache = settings.cache.is_some();
    let why = "must be 1 with distillation.cache: files are found by all tokens of a sample, of which context-parallel ranks have parts";
    draft.require(!has_cache || parallel.context <= 1, "model.context_parallel_size", why);
}
