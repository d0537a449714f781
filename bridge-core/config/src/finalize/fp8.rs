//! `model.fp8` and the settings that only it reads.

use super::super::choice::{Fp8Recipe, ShardingStrategy};
use super::super::sections::TransformerConfig;
use super::Draft;

/// Checks the settings of 8-bit products, for a model of `stacks` stacks of layers.
pub(super) fn check(draft: &mut Draft<'_>, stacks: usize) {
    let model = draft.recipe.model.config.clone();
    have_effect(draft, &model);
    if model.fp8.is_none() {
        return;
    }
    let key = draft.written("model.fp8_recipe");
    if model.fp8_recipe.is_none() && !draft.errors.names(&key) {
        draft.missing(&key, "must say where the scales of model.fp8 come from");
    }
    let is_delayed = model.fp8_recipe == Some(Fp8Recipe::Delayed);
    let has_reference = draft.recipe.dpo.is_some();
    let message = "with scales of earlier steps excludes [dpo], whose reference has none of its own: another model.fp8_recipe has none";
    draft.forbid(is_delayed && has_reference, &draft.written("model.fp8"), message);
    if model.first_last_layers_bf16 {
        edges(draft, &model, stacks);
    }
}

/// Checks that weights can be gathered as codes, if requested. Runs after sharding is resolved.
pub(super) fn check_gather(draft: &mut Draft<'_>) {
    let (ddp, model) = (draft.recipe.ddp.clone(), draft.recipe.model.config.clone());
    // If the preset was refused, its settings are unknown.
    if !ddp.fp8_param_gather || model.fp8.is_none() || is_preset_refused(draft) {
        return;
    }
    let key = &draft.written("ddp.fp8_param_gather");
    let has_one_scale = matches!(model.fp8_recipe, Some(Fp8Recipe::Tensorwise | Fp8Recipe::Delayed));
    let message = "needs model.fp8_recipe = \"tensorwise\" or \"delayed\": blocks with a scale of their own would end inside of what a rank owns";
    draft.require(has_one_scale || model.fp8_recipe.is_none(), key, message);
    let strategy = ddp.data_parallel_sharding_strategy;
    let is_full = ddp.use_megatron_fsdp && strategy == ShardingStrategy::OptimGradsParams;
    let message = "needs ddp.use_megatron_fsdp with ddp.data_parallel_sharding_strategy = \"optim_grads_params\": elsewhere each rank has whole \
                   parameters, of which checkpoints are made";
    draft.require(is_full, key, message);
}

/// True if the preset is refused, so that the values it would have set are unknown.
fn is_preset_refused(draft: &Draft<'_>) -> bool {
    ["mixed_precision", "mixed_precision.params_dtype"].iter().any(|key| draft.errors.names(key))
}

/// Settings must be read by the recipe's features. This is not a rule on their rows, because a
/// model section alone may have them.
fn have_effect(draft: &mut Draft<'_>, model: &TransformerConfig) {
    if is_preset_refused(draft) {
        return;
    }
    let is_on = model.fp8.is_some();
    let is_delayed = is_on && model.fp8_recipe == Some(Fp8Recipe::Delayed);
    let fp8 = "model.fp8";
    let delayed = if is_on { "model.fp8_recipe = \"delayed\"" } else { fp8 };
    let edges = "model.first_last_layers_bf16 = true";
    for (field, needs, is_met) in [
        // A recipe of null is accepted without `model.fp8`.
        ("fp8_recipe", fp8, is_on || model.fp8_recipe.is_none()),
        ("fp8_wgrad", fp8, is_on),
        ("first_last_layers_bf16", fp8, is_on),
        ("fp8_margin", delayed, is_delayed),
        ("fp8_amax_history_len", delayed, is_delayed),
        ("fp8_amax_compute_algo", delayed, is_delayed),
        ("num_layers_at_start_in_bf16", edges, model.first_last_layers_bf16),
        ("num_layers_at_end_in_bf16", edges, model.first_last_layers_bf16),
    ] {
        let key = draft.written(&format!("model.{field}"));
        let is_set =
            draft.is_explicit(&key) && key != "mixed_precision" && draft.recipe_differs(&format!("model.{field}"));
        draft.idle_unless(is_met || !is_set, &key, format!("has no effect without {needs}"));
    }
}

/// Layers at the ends that keep their dtype, which a named preset may have chosen.
fn edges(draft: &mut Draft<'_>, model: &TransformerConfig, stacks: usize) {
    let switch = "model.first_last_layers_bf16";
    let key = draft.written(switch);
    let key = key.as_str();
    let switch = if key == "mixed_precision" { switch } else { key };
    let message = format!("is for models with one stack of layers; {switch} = false gives all of them 8-bit products");
    draft.require(stacks == 1, key, message);
    let (start, end) = (model.num_layers_at_start_in_bf16, model.num_layers_at_end_in_bf16);
    let section = switch.split_once('.').map_or("model", |(section, _)| section);
    let message =
        format!("keeps no layer: set {section}.num_layers_at_start_in_bf16 or {section}.num_layers_at_end_in_bf16");
    draft.require(start + end > 0, key, message);
    let count = model.num_layers;
    let message = format!(
        "leaves none of the {count} layers to model.fp8: model.num_layers_at_start_in_bf16 is {start} and \
         model.num_layers_at_end_in_bf16 {end}; {switch} = false gives them 8-bit products too"
    );
    draft.forbid(start + end >= count && count > 0, key, message);
}
