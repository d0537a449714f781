//! `model.fp8` and the settings that only it reads.

use super::super::choice::{Fp8Recipe, PipelineSchedule};
use super::Draft;

/// Checks the settings of 8-bit products, for a model of `stacks` stacks of layers.
pub(super) fn check(draft: &mut Draft<'_>, stacks: usize) {
    let model = draft.recipe.model.config.clone();
    let is_on = model.fp8.is_some();
    let is_delayed = model.fp8_recipe == Some(Fp8Recipe::Delayed);
    let (fp8, delayed) = ("model.fp8", "model.fp8_recipe = \"delayed\"");
    let edges = "model.first_last_layers_bf16 = true";
    for (field, needs, is_met) in [
        ("fp8_recipe", fp8, is_on),
        ("fp8_wgrad", fp8, is_on),
        ("first_last_layers_bf16", fp8, is_on),
        ("fp8_margin", delayed, is_on && is_delayed),
        ("fp8_amax_history_len", delayed, is_on && is_delayed),
        ("fp8_amax_compute_algo", delayed, is_on && is_delayed),
        ("num_layers_at_start_in_bf16", edges, model.first_last_layers_bf16),
        ("num_layers_at_end_in_bf16", edges, model.first_last_layers_bf16),
    ] {
        let (of_model, of_table) = (format!("model.{field}"), format!("mixed_precision.{field}"));
        let key = draft.chosen(&[&of_model, &of_table]);
        let is_set = draft.is_explicit(key) && draft.recipe_differs(&of_model);
        draft.require(is_met || !is_set, key, format!("has no effect without {needs}"));
    }
    if !is_on {
        return;
    }
    if model.fp8_recipe.is_none() {
        draft.missing("model.fp8_recipe", "must say where the scales of model.fp8 come from");
    }
    let key = draft.chosen(&["model.fp8", "mixed_precision.fp8", "mixed_precision"]);
    let (has_peft, schedule) = (draft.recipe.peft.is_some(), model.pipeline_schedule);
    draft.forbid(
        has_peft,
        key,
        "8-bit products of adapted layers are not implemented: use peft.base_quantization, or no fp8",
    );
    let defers = schedule == Some(PipelineSchedule::ZeroBubbleH1);
    draft.forbid(
        defers,
        key,
        "excludes model.pipeline_schedule = \"zb_h1\", which defers weight gradients of 16 or 32 bits",
    );
    if model.first_last_layers_bf16 {
        let (start, end) = (model.num_layers_at_start_in_bf16, model.num_layers_at_end_in_bf16);
        let key = "model.first_last_layers_bf16";
        draft.require(stacks == 1, key, "is for models with one stack of layers");
        draft.require(
            start + end > 0,
            key,
            "keeps no layer: set num_layers_at_start_in_bf16 or num_layers_at_end_in_bf16",
        );
        let count = model.num_layers;
        let message = format!(
            "leaves none of the {count} layers to model.fp8: {start} at the start and {end} at the end are kept"
        );
        draft.forbid(start + end >= count && count > 0, key, message);
    }
}
