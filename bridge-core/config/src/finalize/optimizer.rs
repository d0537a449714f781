//! The rules of `[optimizer]`.

use std::collections::BTreeSet;

use super::super::choice::{DType, LrDecayStyle, MatmulPrecision, Moment2Method, MuonCoefficients, OptimizerName};
use super::super::run_config::{FinalOptimizer, ParallelSizes};
use super::Draft;
use super::presets::has_shards;
use crate::optimizer_rules::{
    ADAPTIVE_MUON, KeptFormats, NAMES, OptimizerRule, RULES, SCHEDULE_FREE_ADAMW, ScalarRule, UpdateSize,
};
use crate::sections::RecipeConfig;

/// Checks the optimizer and fills in the floor of its learning rate.
pub(super) fn resolve(draft: &mut Draft<'_>, parallel: &ParallelSizes) -> FinalOptimizer {
    let min_lr = *draft.recipe.optimizer.min_lr.get_or_insert(0.0);
    zeros_are_counted(draft);
    precisions_fit(draft, parallel);
    offload_fits(draft);
    let config = draft.recipe.optimizer.clone();
    if config.lr.is_none() {
        draft.missing("optimizer.lr", "must be given");
    }
    let lr = config.lr.unwrap_or(min_lr);
    draft.forbid(min_lr > lr, "optimizer.min_lr", format!("is above optimizer.lr = {lr}"));
    decoupled_rates_fit(draft);
    loss_scale_fits(draft);
    foreign_settings_are_not_set(draft, config.optimizer);
    whole_rules_fit(draft);
    schedule_free_fits(draft);
    parameter_rules_fit(draft, lr);
    width_transfer_fits(draft, lr);
    FinalOptimizer { lr, min_lr, config }
}

/// The chosen rule must exist, and settings that only other rules read are refused.
fn foreign_settings_are_not_set(draft: &mut Draft<'_>, chosen: OptimizerName) {
    if chosen.rule().is_none() {
        // The refusal of the name has been reported already.
        let is_refused = draft.errors.names("optimizer.optimizer");
        let message = format!("expected one of {}, found {chosen}", NAMES.join(", "));
        return draft.require(is_refused, "optimizer.optimizer", message);
    }
    let all = all_rules(&draft.recipe);
    let is_read = |setting: &&str| all.iter().any(|rule| rule.settings.contains(setting));
    let settings: BTreeSet<&str> = RULES.iter().flat_map(|other| other.settings).copied().collect();
    for setting in settings.into_iter().filter(|setting| !is_read(setting)) {
        let key = format!("optimizer.{setting}");
        let readers = RULES.iter().filter(|other| other.settings.contains(&setting)).map(|other| other.name);
        let readers = readers.collect::<Vec<_>>().join(", ");
        let message = format!("is a setting of {readers}, but optimizer.optimizer is {chosen}");
        let is_changed = draft.recipe_differs(&key);
        draft.require(!is_changed, &key, message);
    }
}

/// Optimizers that parameters of a run may have: the chosen one, that of vectors beside it, and
/// those of rules of single parameters.
fn all_rules(recipe: &RecipeConfig) -> Vec<&'static OptimizerRule> {
    let chosen = recipe.optimizer.optimizer.rule();
    let scalars = chosen.and_then(|rule| rule.scalar_rule(&recipe.optimizer));
    let rules = recipe.optimizer_config_override_provider.rules.iter();
    let of_parameters = rules.filter_map(|rule| rule.optimizer?.rule());
    chosen.into_iter().chain(scalars).chain(of_parameters).collect()
}

/// Rules of single parameters: each has a pattern that can be read and sets something.
fn parameter_rules_fit(draft: &mut Draft<'_>, lr: f64) {
    for (number, rule) in draft.recipe.optimizer_config_override_provider.rules.clone().iter().enumerate() {
        let key = |name: &str| format!("optimizer_config_override_provider.rules.{number}.{name}");
        if let Err(error) = rule.regex() {
            draft.require(false, &key("pattern"), format!("is no regular expression: {error}"));
        }
        let message = "sets nothing: expected optimizer, lr, lr_mult, min_lr, weight_decay, eps or momentum";
        draft.forbid(rule.set().is_empty(), &key("pattern"), message);
        if let Some(name) = rule.optimizer.filter(|name| name.rule().is_none()) {
            draft.require(false, &key("optimizer"), format!("expected one of {}, found {name}", NAMES.join(", ")));
        }
        let chosen = rule.optimizer.map_or_else(|| all_rules(&draft.recipe), |name| name.rule().into_iter().collect());
        let names = chosen.iter().map(|rule| rule.name).collect::<Vec<_>>().join(", ");
        let mut settings = draft.recipe.optimizer.clone();
        // An optimizer without a rule has been refused above.
        let has_momentum = chosen.is_empty() || chosen.iter().any(|rule| rule.momentum(&mut settings).is_some());
        draft.require(rule.momentum.is_none() || has_momentum, &key("momentum"), format!("is no setting of {names}"));
        let has_epsilon = chosen.is_empty() || chosen.iter().any(|rule| rule.epsilon(&mut settings).is_some());
        draft.require(rule.eps.is_none() || has_epsilon, &key("eps"), format!("is no setting of {names}"));
        let (peak, floor) = (rule.lr.unwrap_or(lr), rule.min_lr.or(draft.recipe.optimizer.min_lr).unwrap_or(0.0));
        draft.forbid(floor > peak, &key("lr"), format!("is below the floor {floor}; set min_lr too"));
    }
}

/// Combinations that the rules of whole parameters cannot compute.
fn whole_rules_fit(draft: &mut Draft<'_>) {
    let config = draft.recipe.optimizer.clone();
    if let Some(rule) = all_rules(&draft.recipe).into_iter().find(|rule| rule.is_whole()) {
        let message = format!(
            "is not implemented with the optimizer {}: whole parameters are updated on the model's device",
            rule.name
        );
        draft.forbid(config.optimizer_cpu_offload, "optimizer.optimizer_cpu_offload", message);
    }
    let Some(rule) = config.optimizer.rule().filter(|rule| rule.scalars == ScalarRule::Muon) else { return };
    let is_cubic5 = config.muon_coefficient_type == MuonCoefficients::Cubic5;
    let message = format!("expected 5, the length of cubic5, found {}", config.muon_num_ns_steps);
    draft.require(!is_cubic5 || config.muon_num_ns_steps == 5, "optimizer.muon_num_ns_steps", message);
    let is_namo = *rule == ADAPTIVE_MUON && config.adaptive_muon_moment2_method == Moment2Method::Namo;
    let message = "namo measures the gradient without decay: expected optimizer.decoupled_weight_decay = true";
    draft.forbid(is_namo && !config.decoupled_weight_decay, "optimizer.adaptive_muon_moment2_method", message);
    const PRECISION: &str = "optimizer.muon_fp32_matmul_prec";
    let device = draft.recipe.device.clone();
    let is_idle = draft.is_explicit(PRECISION)
        && config.muon_fp32_matmul_prec == MatmulPrecision::Medium
        && matches!(device.as_str(), "flex" | "cpu");
    draft.idle_if(is_idle, PRECISION, format!("has no effect on device = {device}, where products are float32"));
}

/// Schedule-free AdamW weighs steps by its own warm-up, and is evaluated by averages.
fn schedule_free_fits(draft: &mut Draft<'_>) {
    const NAME: &str = SCHEDULE_FREE_ADAMW.name;
    let (recipe, scheduler) = (draft.recipe.clone(), draft.recipe.scheduler.clone());
    if recipe.optimizer.optimizer.as_str() != NAME {
        let rules = recipe.optimizer_config_override_provider.rules.iter();
        for (number, _) in
            rules.enumerate().filter(|(_, rule)| rule.optimizer.is_some_and(|name| name.as_str() == NAME))
        {
            let key = format!("optimizer_config_override_provider.rules.{number}.optimizer");
            draft.require(false, &key, format!("{NAME} cannot be set for single parameters: set optimizer.optimizer = \"{NAME}\" for the whole model"));
        }
        return;
    }
    let message = format!("{NAME} needs no schedule: expected \"constant\"");
    draft.require(scheduler.lr_decay_style == LrDecayStyle::Constant, "scheduler.lr_decay_style", message);
    for (key, is_set) in [
        ("scheduler.lr_warmup_iters", scheduler.lr_warmup_iters != 0),
        ("scheduler.lr_warmup_samples", scheduler.lr_warmup_samples != 0),
        ("scheduler.lr_warmup_fraction", scheduler.lr_warmup_fraction.is_some()),
    ] {
        let message = format!("{NAME} weighs steps by its own warm-up: expected optimizer.schedule_free_warmup_steps");
        draft.forbid(is_set, key, message);
    }
    let message = format!("{NAME} needs it: averages of weights are saved with the states");
    draft.require(recipe.checkpoint.save_optim, "checkpoint.save_optim", message);
    let message = format!("{NAME} is evaluated by averages, which replace the weights that are gathered as codes");
    draft.forbid(recipe.ddp.fp8_param_gather, "ddp.fp8_param_gather", message);
}

/// An offload to the host must be requested explicitly, and only with a fraction above zero.
fn offload_fits(draft: &mut Draft<'_>) {
    const SWITCH: &str = "optimizer.optimizer_cpu_offload";
    const FRACTION: &str = "optimizer.optimizer_offload_fraction";
    let config = &draft.recipe.optimizer;
    let (is_on, fraction) = (config.optimizer_cpu_offload, config.optimizer_offload_fraction);
    // Upstream moves nothing then, so a run that was to save memory would run out of it.
    let message = format!(
        "0 moves nothing to the host: with {SWITCH} give the fraction of the trained elements whose states go there (1.0 for all), or leave {SWITCH} out"
    );
    draft.forbid(is_on && fraction == 0.0, FRACTION, message);
}

/// Half of the last bit of a bfloat16 between 1 and 2, relative to 1: a change below that is
/// rounded away.
const BF16_HALF_UNIT: f64 = 1.0 / 256.0;

/// Precisions of states, masters and gradients.
fn precisions_fit(draft: &mut Draft<'_>, parallel: &ParallelSizes) {
    const SWITCH: &str = "optimizer.use_precision_aware_optimizer";
    let config = draft.recipe.optimizer.clone();
    let is_on = config.use_precision_aware_optimizer;
    for (key, dtype) in [
        ("optimizer.main_grads_dtype", config.main_grads_dtype),
        ("optimizer.main_params_dtype", config.main_params_dtype),
        ("optimizer.exp_avg_dtype", config.exp_avg_dtype),
        ("optimizer.exp_avg_sq_dtype", config.exp_avg_sq_dtype),
    ] {
        let name = if dtype == DType::UInt8 { " (fp8 is another name of uint8)" } else { "" };
        let message = format!("{dtype} needs {SWITCH} = true: without it this is float32{name}");
        draft.require(is_on || dtype == DType::Float32, key, message);
    }
    if !is_on {
        return;
    }
    let by_blocks = config.optimizer.rule().is_some_and(|rule| rule.formats == KeptFormats::Blocks);
    for (key, dtype) in
        [("optimizer.exp_avg_dtype", config.exp_avg_dtype), ("optimizer.exp_avg_sq_dtype", config.exp_avg_sq_dtype)]
    {
        let message = format!("is of moments with one scale a tensor; {} keeps codes by blocks", config.optimizer);
        draft.forbid(by_blocks && dtype != DType::Float32, key, message);
    }
    if config.exp_avg_sq_dtype == DType::BFloat16 && 1.0 - config.adam_beta2 < BF16_HALF_UNIT {
        draft.warnings.push(format!(
            "optimizer.exp_avg_sq_dtype: with adam_beta2 = {} a second moment in bfloat16 hardly decays: each step takes off less than its \
             last bit; float32, or adam_beta2 up to {}",
            config.adam_beta2,
            1.0 - BF16_HALF_UNIT
        ));
    }
    let keepers = RULES.iter().filter(|rule| rule.keeps_formats()).map(|rule| rule.name).collect::<Vec<_>>().join(", ");
    let message = format!("needs optimizer.optimizer = {keepers}: states of {} are float32", config.optimizer);
    draft.require(config.optimizer.rule().is_none_or(|rule| rule.keeps_formats()), SWITCH, message);
    let divides_state = has_shards(&draft.recipe);
    let message = format!(
        "needs ddp.use_distributed_optimizer on {} data-parallel ranks: each would keep the states of all parameters",
        parallel.data
    );
    draft.require(divides_state || parallel.data <= 1, SWITCH, message);
    let model = &draft.recipe.model;
    let params = model.params_dtype;
    let has_halves = matches!(params, DType::BFloat16 | DType::Float16);
    let message =
        format!("is the dtype of master weights, which parameters of model.params_dtype = {params} do not have");
    draft.require(has_halves || config.main_params_dtype == DType::Float32, "optimizer.main_params_dtype", message);
    main_grads_follow(draft, params);
    remainders_fit(draft, params);
}

/// Remainders are only defined as the low halves of float32 masters of bfloat16 parameters.
fn remainders_fit(draft: &mut Draft<'_>, params: DType) {
    const KEY: &str = "optimizer.store_param_remainders";
    let masters = draft.recipe.optimizer.main_params_dtype;
    if params == DType::BFloat16 && masters == DType::Float32 {
        return;
    }
    let is_wanted = draft.is_explicit(KEY) && draft.recipe.optimizer.store_param_remainders;
    let message = format!(
        "has no effect with model.params_dtype = {params} and optimizer.main_params_dtype = {masters}: remainders are of \
         float32 masters of bfloat16 parameters"
    );
    draft.idle_if(is_wanted, KEY, message);
    draft.recipe.optimizer.store_param_remainders = false;
}

/// Gradients are summed in one dtype, which two settings name.
fn main_grads_follow(draft: &mut Draft<'_>, params: DType) {
    const KEY: &str = "optimizer.main_grads_dtype";
    let sums_halves = params == DType::BFloat16 && !draft.recipe.ddp.grad_reduce_in_fp32;
    match draft.recipe.optimizer.main_grads_dtype {
        DType::BFloat16 => {
            let message = format!(
                "bfloat16 needs bfloat16 parameters and ddp.grad_reduce_in_fp32 = false (for instance mixed_precision = {{bf16 = true, \
                 grad_reduce_in_fp32 = false}}): gradients of model.params_dtype = {params} are summed in {} here",
                if params == DType::Float16 && !draft.recipe.ddp.grad_reduce_in_fp32 { params } else { DType::Float32 }
            );
            draft.require(sums_halves, KEY, message);
        }
        DType::Float32 if sums_halves && draft.is_explicit(KEY) => {
            let message = "float32 contradicts ddp.grad_reduce_in_fp32 = false, with which bfloat16 gradients are summed in bfloat16";
            draft.conflict(KEY, message);
        }
        DType::Float32 if sums_halves => draft.recipe.optimizer.main_grads_dtype = DType::BFloat16,
        _ => {}
    }
}

fn decoupled_rates_fit(draft: &mut Draft<'_>) {
    let config = draft.recipe.optimizer.clone();
    match (config.decoupled_lr, config.decoupled_min_lr) {
        (None, _) => {}
        (Some(lr), Some(min_lr)) => {
            draft.forbid(min_lr > lr, "optimizer.decoupled_min_lr", format!("is above optimizer.decoupled_lr = {lr}"));
        }
        (Some(lr), None) => {
            let min_lr = config.min_lr.unwrap_or(0.0);
            let message = format!(
                "is below optimizer.min_lr = {min_lr}, which it would rise to; set optimizer.decoupled_min_lr too"
            );
            draft.forbid(min_lr > lr, "optimizer.decoupled_lr", message);
        }
    }
    if let Some(lr) = config.decoupled_lr {
        let start = draft.recipe.scheduler.lr_warmup_init;
        let message = format!("is below scheduler.lr_warmup_init = {start}, which its warm-up starts from");
        draft.forbid(start > lr, "optimizer.decoupled_lr", message);
    }
}

/// muP divides the learning rates of hidden matrices, which is right where updates are as large as
/// the rate.
fn width_transfer_fits(draft: &mut Draft<'_>, lr: f64) {
    let model = draft.recipe.model.config.clone();
    if !model.use_mup {
        return;
    }
    let chosen = draft.recipe.optimizer.optimizer;
    let follows_gradient = chosen.rule().is_some_and(|rule| rule.size == UpdateSize::Gradient);
    let message = format!(
        "expected an optimizer whose updates are as large as its learning rate, such as adam: how rates of {chosen} go with the width is \
         not implemented"
    );
    draft.forbid(follows_gradient, "model.use_mup", message);
    let (start, lowest) = (draft.recipe.scheduler.lr_warmup_init, lr / model.width_multiplier());
    let message = format!("is above {lowest}, the learning rate of hidden matrices with model.use_mup");
    draft.forbid(start > lowest, "scheduler.lr_warmup_init", message);
}

fn loss_scale_fits(draft: &mut Draft<'_>) {
    let config = draft.recipe.optimizer.clone();
    draft.forbid(
        config.initial_loss_scale < config.min_loss_scale,
        "optimizer.initial_loss_scale",
        format!("is below optimizer.min_loss_scale = {}", config.min_loss_scale),
    );
    draft.require(
        config.loss_scale_window.fract() == 0.0,
        "optimizer.loss_scale_window",
        "counts steps, so it must be a whole number",
    );
}

/// The same setting exists in two sections; afterwards both have the same value.
fn zeros_are_counted(draft: &mut Draft<'_>) {
    draft.refuse_contradictions(&["optimizer.log_num_zeros_in_grad", "logger.log_num_zeros_in_grad"]);
    let (optimizer, logger) = (&mut draft.recipe.optimizer, &mut draft.recipe.logger);
    let is_counted = optimizer.log_num_zeros_in_grad || logger.log_num_zeros_in_grad;
    (optimizer.log_num_zeros_in_grad, logger.log_num_zeros_in_grad) = (is_counted, is_counted);
}
