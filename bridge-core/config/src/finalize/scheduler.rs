//! The rules of `[scheduler]`, and the curves that they describe, with lengths in samples.

use super::super::choice::{LrDecayStyle, WeightDecayIncrStyle};
use super::super::run_config::{FinalOptimizer, FinalScheduler, FinalTraining};
use super::Draft;
use crate::schedule::OptimizerParamSchedulerConfig;

/// Checks the schedules, fills in the ends of the weight decay and derives the lengths.
pub(super) fn resolve(draft: &mut Draft<'_>, train: &FinalTraining, optimizer: &FinalOptimizer) -> FinalScheduler {
    units_do_not_mix(draft);
    wsd_has_its_length(draft);
    rates_are_ordered(draft);
    constant_rate_has_no_end(draft);
    fill_in_weight_decay(draft);
    let schedule = schedule(draft, train, optimizer);
    tell_where_nothing_is_learned(draft, &schedule);
    FinalScheduler { schedule, config: draft.recipe.scheduler.clone() }
}

/// Lengths must be given in the same unit as the length of the training.
fn units_do_not_mix(draft: &mut Draft<'_>) {
    let scheduler = draft.recipe.scheduler.clone();
    let by_iters = [
        ("scheduler.lr_decay_iters", scheduler.lr_decay_iters.is_some()),
        ("scheduler.lr_warmup_iters", scheduler.lr_warmup_iters != 0),
        ("scheduler.lr_wsd_decay_iters", scheduler.lr_wsd_decay_iters.is_some()),
    ];
    let by_samples = [
        ("scheduler.lr_decay_samples", scheduler.lr_decay_samples.is_some()),
        ("scheduler.lr_warmup_samples", scheduler.lr_warmup_samples != 0),
        ("scheduler.lr_wsd_decay_samples", scheduler.lr_wsd_decay_samples.is_some()),
    ];
    let is_sample_based = draft.recipe.train.train_samples.is_some();
    let (wrong, length) = if is_sample_based {
        (by_iters, "train.train_samples, not train.train_iters")
    } else {
        (by_samples, "train.train_iters, not train.train_samples")
    };
    for (key, is_given) in wrong {
        let instead = match key.strip_suffix("_iters") {
            Some(stem) => format!("{stem}_samples"),
            None => key.replace("_samples", "_iters"),
        };
        let message = format!("has a different unit than the training, which has {length}; write {instead}");
        draft.require(!is_given, key, message);
    }
}

/// A constant rate stays at its peak, even beyond the schedule's length, which matters only for a
/// warm-up fraction.
fn constant_rate_has_no_end(draft: &mut Draft<'_>) {
    let (optimizer, scheduler) = (draft.recipe.optimizer.clone(), draft.recipe.scheduler.clone());
    let is_constant = scheduler.lr_decay_style == LrDecayStyle::Constant;
    let has_fraction = scheduler.lr_warmup_fraction.is_some();
    for (key, is_set) in [
        ("optimizer.min_lr", optimizer.min_lr.is_some_and(|lr| lr != 0.0)),
        ("optimizer.decoupled_min_lr", optimizer.decoupled_min_lr.is_some_and(|lr| lr != 0.0)),
        ("scheduler.lr_decay_iters", scheduler.lr_decay_iters.is_some() && !has_fraction),
        ("scheduler.lr_decay_samples", scheduler.lr_decay_samples.is_some() && !has_fraction),
    ] {
        let message = "has no effect with scheduler.lr_decay_style = \"constant\": the learning rate stays at its peak";
        draft.idle_unless(!is_constant || !is_set, key, message);
    }
}

fn wsd_has_its_length(draft: &mut Draft<'_>) {
    let scheduler = draft.recipe.scheduler.clone();
    let is_wsd = scheduler.lr_decay_style == LrDecayStyle::Wsd;
    let lengths = [
        ("scheduler.lr_wsd_decay_iters", scheduler.lr_wsd_decay_iters),
        ("scheduler.lr_wsd_decay_samples", scheduler.lr_wsd_decay_samples),
    ];
    if is_wsd && lengths.iter().all(|(_, length)| length.is_none()) {
        let is_sample_based = draft.recipe.train.train_samples.is_some();
        let (key, _) = lengths[usize::from(is_sample_based)];
        draft.missing(key, "must be given with scheduler.lr_decay_style = \"WSD\"");
    }
}

fn rates_are_ordered(draft: &mut Draft<'_>) {
    let init = draft.recipe.scheduler.lr_warmup_init;
    let Some(lr) = draft.recipe.optimizer.lr else { return };
    draft.forbid(init > lr, "scheduler.lr_warmup_init", format!("is above optimizer.lr = {lr}"));
}

/// Gives the ramp of the weight decay the ends that the recipe leaves out.
fn fill_in_weight_decay(draft: &mut Draft<'_>) {
    let base = draft.recipe.optimizer.weight_decay;
    let scheduler = &mut draft.recipe.scheduler;
    let start = *scheduler.start_weight_decay.get_or_insert(base);
    let end = *scheduler.end_weight_decay.get_or_insert(base);
    let is_constant = scheduler.weight_decay_incr_style == WeightDecayIncrStyle::Constant;
    // Name the end that the user gave.
    let key = if draft.raw.scheduler.end_weight_decay.is_some() {
        "scheduler.end_weight_decay"
    } else if draft.raw.scheduler.start_weight_decay.is_some() {
        "scheduler.start_weight_decay"
    } else {
        "optimizer.weight_decay"
    };
    if is_constant {
        draft.require(
            start == end || start.is_nan() || end.is_nan(),
            key,
            format!(
                "scheduler.start_weight_decay = {start} and scheduler.end_weight_decay = {end} differ, but \
                 scheduler.weight_decay_incr_style is constant"
            ),
        );
    } else {
        draft.forbid(end < start, key, format!(
            "weight decay would fall from scheduler.start_weight_decay = {start} to scheduler.end_weight_decay = {end}, \
             which scheduler.weight_decay_incr_style cannot do"
        ));
    }
    let is_ramp = start != end;
    draft.idle_unless(
        is_constant || is_ramp,
        "scheduler.weight_decay_incr_style",
        format!(
            "has no effect: scheduler.start_weight_decay and scheduler.end_weight_decay (each optimizer.weight_decay unless \
             given) are both {end}"
        ),
    );
    // A value equal to one of the ends was used, or could have been.
    let is_used = start == base || end == base || !draft.recipe_differs("optimizer.weight_decay");
    draft.idle_unless(
        is_used,
        "optimizer.weight_decay",
        format!(
            "has no effect: scheduler.start_weight_decay = {start} and scheduler.end_weight_decay = {end} say what the weight \
             decay is"
        ),
    );
    for key in ["optimizer.apply_wd_to_qk_layernorm", "optimizer.decoupled_weight_decay"] {
        let is_changed = draft.recipe_differs(key);
        let decays = start != 0.0 || end != 0.0;
        draft.idle_unless(decays || !is_changed, key, "has no effect without optimizer.weight_decay");
    }
}

/// A rate of zero is a rate, but seldom what was meant for much of a run.
fn tell_where_nothing_is_learned(draft: &mut Draft<'_>, schedule: &OptimizerParamSchedulerConfig) {
    let optimizer = &draft.recipe.optimizer;
    let (total, decay) = (schedule.wd_incr_steps, schedule.lr_decay_steps);
    let is_constant = draft.recipe.scheduler.lr_decay_style == LrDecayStyle::Constant;
    let ends_in_nothing = optimizer.min_lr.unwrap_or(0.0) == 0.0 && !is_constant;
    if draft.recipe.validation.skip_train {
        return;
    }
    if optimizer.lr == Some(0.0) {
        draft.warnings.push("optimizer.lr = 0: the run learns nothing".into());
    } else if ends_in_nothing && decay < total {
        let unit = if draft.recipe.train.train_samples.is_some() { "samples" } else { "iters" };
        let part = 100.0 * (total - decay) as f64 / total as f64;
        draft.warnings.push(format!(
            "scheduler.lr_decay_{unit} ends before train.train_{unit}: for the last {part:.0} % of the run the learning rate is optimizer.min_lr = 0, \
             and nothing is learned"
        ));
    }
}

fn schedule(draft: &mut Draft<'_>, train: &FinalTraining, optimizer: &FinalOptimizer) -> OptimizerParamSchedulerConfig {
    let scheduler = draft.recipe.scheduler.clone();
    let batch = train.global_batch_size as u64;
    let in_samples = |iters: usize| (iters as u64).saturating_mul(batch);
    let is_sample_based = train.train_samples.is_some();
    let (total, decay, wsd, warmup) = match train.train_samples {
        Some(samples) => (
            samples as u64,
            scheduler.lr_decay_samples.map(|samples| samples as u64),
            scheduler.lr_wsd_decay_samples.map(|samples| samples as u64),
            scheduler.lr_warmup_samples as u64,
        ),
        None => (
            in_samples(train.train_iters),
            scheduler.lr_decay_iters.map(in_samples),
            scheduler.lr_wsd_decay_iters.map(in_samples),
            in_samples(scheduler.lr_warmup_iters),
        ),
    };
    let lr_decay_steps = decay.unwrap_or(total);
    if let Some(wsd) = wsd {
        let unit = if is_sample_based { "samples" } else { "iters" };
        draft.require(
            wsd <= lr_decay_steps,
            &format!("scheduler.lr_wsd_decay_{unit}"),
            format!(
                "is longer than the schedule, whose length is scheduler.lr_decay_{unit}, or train.train_{unit} if that is not set"
            ),
        );
    }
    let mut lr_warmup_steps = match scheduler.lr_warmup_fraction {
        Some(fraction) => fraction * lr_decay_steps as f64,
        None => warmup as f64,
    };
    if lr_warmup_steps >= lr_decay_steps as f64 {
        lr_warmup_steps = lr_decay_steps.saturating_sub(1) as f64;
        let unit = if is_sample_based { "samples" } else { "iters" };
        let warmup = match scheduler.lr_warmup_fraction {
            Some(fraction) => format!("scheduler.lr_warmup_fraction = {fraction}"),
            None if is_sample_based => format!("scheduler.lr_warmup_samples = {}", scheduler.lr_warmup_samples),
            None => format!("scheduler.lr_warmup_iters = {}", scheduler.lr_warmup_iters),
        };
        let length = match decay {
            Some(_) => format!("scheduler.lr_decay_{unit}"),
            None => format!("train.train_{unit}"),
        };
        draft.warnings.push(format!(
            "{warmup} is as long as the whole schedule ({length}): the warm-up is shortened, and nothing is left to decay"
        ));
    }
    OptimizerParamSchedulerConfig {
        init_lr: scheduler.lr_warmup_init,
        max_lr: optimizer.lr,
        min_lr: optimizer.min_lr,
        lr_warmup_steps,
        lr_decay_steps,
        lr_decay_style: scheduler.lr_decay_style,
        start_wd: scheduler.start_weight_decay.unwrap_or(optimizer.weight_decay),
        end_wd: scheduler.end_weight_decay.unwrap_or(optimizer.weight_decay),
        wd_incr_steps: total,
        wd_incr_style: scheduler.weight_decay_incr_style,
        wsd_decay_steps: wsd,
        lr_wsd_decay_style: scheduler.lr_wsd_decay_style,
    }
}
