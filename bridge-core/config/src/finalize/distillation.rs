//! `[distillation]`: rules.

use super::super::run_config::ParallelSizes;
use super::super::sections::DistillationConfig;
use super::Draft;

/// Rules of learning from a teacher.
pub(super) fn check(draft: &mut Draft<'_>, parallel: &ParallelSizes) {
    let Some(settings) = draft.recipe.distillation.clone() else {
        return;
    };
    draft.require(settings.teacher.is_some(), "distillation.teacher", "must be given with [distillation]");
    draft.forbid(draft.recipe.dpo.is_some(), "dpo", "excludes [distillation]: a run has one loss");
    let model = &draft.recipe.model;
    let (is_two_stacks, predicts_more) = (model.kind == "t5", model.mtp_num_layers.is_some());
    draft.forbid(
        is_two_stacks,
        "model.kind",
        "has no [distillation]: a teacher is a decoder, which has no encoder's text",
    );
    let why = "has no place in [distillation]: teachers say nothing of tokens further on";
    draft.forbid(predicts_more, "model.mtp_num_layers", why);
    has_effects(draft, &settings);
    let (has_top_k, has_cache) = (settings.top_k.is_some(), settings.cache.is_some());
    let why = "needs distillation.top_k: the logits of a whole vocabulary are too many to keep";
    draft.require(!has_cache || has_top_k, "distillation.cache", why);
    let why = "must be 1 with distillation.cache: files are found by all tokens of a sample, of which context-parallel ranks have parts";
    draft.require(!has_cache || parallel.context <= 1, "model.context_parallel_size", why);
    let why = "must be 0 with distillation.cache, which has no hidden states";
    draft.require(!has_cache || settings.hidden_weight == 0.0, "distillation.hidden_weight", why);
}

/// Settings that others make void.
fn has_effects(draft: &mut Draft<'_>, settings: &DistillationConfig) {
    let usual = DistillationConfig::default();
    if settings.alpha == 0.0 {
        let has_hidden = settings.hidden_weight > 0.0;
        draft.require(has_hidden, "distillation.alpha", "must be above 0 without distillation.hidden_weight");
        let why = "has no effect with distillation.alpha = 0";
        draft.idle_unless(settings.temperature == usual.temperature, "distillation.temperature", why);
        draft.idle_unless(settings.top_k.is_none(), "distillation.top_k", why);
    }
    let is_usual = settings.hidden_loss == usual.hidden_loss;
    draft.idle_unless(
        is_usual || settings.hidden_weight > 0.0,
        "distillation.hidden_loss",
        "has no effect without distillation.hidden_weight",
    );
}
