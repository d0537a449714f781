//! The rules of `[logger]`: its folder, and combinations in which a setting has no effect.

use std::path::PathBuf;

use super::super::memory_statistics::MEMORY_STATISTICS;
use super::super::run_config::FinalLogger;
use super::Draft;

/// Fills in the folder.
pub(super) fn resolve(draft: &mut Draft<'_>, name: &str) -> FinalLogger {
    let default_dir = || PathBuf::from("runs").join(name);
    let log_dir = draft.recipe.logger.log_dir.get_or_insert_with(default_dir).clone();
    draft.require(!log_dir.as_os_str().is_empty(), "logger.log_dir", "is not the name of a folder");
    FinalLogger { log_dir, config: draft.recipe.logger.clone() }
}

/// Reports settings without effect; the other sections are resolved already.
pub(super) fn check(draft: &mut Draft<'_>) {
    let logger = draft.recipe.logger.clone();
    if logger.skip_train_metrics_log {
        return;
    }
    let device = draft.recipe.device.clone();
    let is_known = matches!(device.as_str(), "flex" | "cpu") || device.starts_with("cuda");
    for (key, is_on) in
        [("logger.log_energy", logger.log_energy), ("logger.log_device_memory_used", logger.log_device_memory_used)]
    {
        draft.require(is_known || !is_on, key, "is known of processors and of CUDA devices");
    }
    memory(draft);
    trackers(draft);
    times(draft);
    window(draft);
}

/// Memory statistics need known names.
fn memory(draft: &mut Draft<'_>) {
    let logger = draft.recipe.logger.clone();
    let Some(keys) = logger.memory_keys else { return };
    draft.forbid(keys.is_empty(), "logger.memory_keys", "names no statistic");
    let known = MEMORY_STATISTICS.map(|(statistic, _)| statistic);
    for statistic in keys.keys().filter(|statistic| !known.contains(&statistic.as_str())) {
        let message = format!(
            "{statistic:?} is no statistic that an allocator here keeps; expected some of {}",
            known.join(", ")
        );
        draft.conflict("logger.memory_keys", message);
    }
    let used = "device_used_bytes.all.current";
    draft.forbid(
        keys.contains_key(used) && !logger.log_device_memory_used,
        "logger.memory_keys",
        format!("names {used}, which is read with logger.log_device_memory_used = true"),
    );
    draft.forbid(
        logger.log_device_memory_used && !keys.contains_key(used),
        "logger.memory_keys",
        format!("does not name {used}, which logger.log_device_memory_used asks for"),
    );
}

/// A tracker needs the names that upstream asks for.
fn trackers(draft: &mut Draft<'_>) {
    let logger = draft.recipe.logger.clone();
    for (main, is_used, name, is_given) in [
        (
            "logger.mlflow_experiment",
            logger.mlflow_experiment.is_some(),
            "logger.mlflow_run_name",
            logger.mlflow_run_name.is_some(),
        ),
        (
            "logger.comet_project",
            logger.comet_project.is_some(),
            "logger.comet_experiment_name",
            logger.comet_experiment_name.is_some(),
        ),
    ] {
        draft.require(is_given || !is_used, name, format!("must be given with {main}"));
    }
    names(draft);
}

/// Names that trackers refuse are refused before anything is written for them.
fn names(draft: &mut Draft<'_>) {
    let logger = draft.recipe.logger.clone();
    let texts = [
        ("logger.wandb_project", &logger.wandb_project),
        ("logger.wandb_exp_name", &logger.wandb_exp_name),
        ("logger.wandb_entity", &logger.wandb_entity),
        ("logger.comet_project", &logger.comet_project),
        ("logger.comet_experiment_name", &logger.comet_experiment_name),
        ("logger.comet_workspace", &logger.comet_workspace),
    ];
    for (key, text) in texts {
        let is_empty = text.as_ref().is_some_and(|text| text.trim().is_empty());
        draft.forbid(is_empty, key, "is empty; expected a name");
    }
    let has_empty_tag = logger.comet_tags.iter().flatten().any(|tag| tag.trim().is_empty());
    draft.forbid(has_empty_tag, "logger.comet_tags", "has an empty tag");
    let project = logger.wandb_project.unwrap_or_default();
    let is_refused = project.chars().count() > 128 || project.contains(['/', '\\', '#', '?', '%', ':']);
    draft.forbid(
        is_refused,
        "logger.wandb_project",
        format!(
            "{project:?} is no name that W&B takes; expected at most 128 characters, none of them one of / \\ # ? % :"
        ),
    );
}

/// Settings about times need active timers.
fn times(draft: &mut Draft<'_>) {
    let level = draft.recipe.logger.timing_log_level;
    let option = "logger.timing_log_option";
    let is_changed = draft.recipe_differs(option);
    let saves = draft.recipe.checkpoint.save.is_some();
    let evaluates = evaluates(draft) && draft.recipe.validation.eval_interval.is_some();
    draft.idle_if(
        is_changed && level == 0 && !saves && !evaluates,
        option,
        "has no effect with logger.timing_log_level = 0, which times saves and evaluations, where checkpoint.save and \
         validation.eval_interval (or validation.eval_iters and validation.full_validation) ask for neither",
    );
}

/// A window that is longer than the run has no effect.
fn window(draft: &mut Draft<'_>) {
    let key = "logger.throughput_window_size";
    let window = draft.recipe.logger.throughput_window_size;
    let Some(iterations) = draft.recipe.train.train_iters else { return };
    let is_changed = draft.recipe_differs(key);
    draft.idle_if(
        is_changed && window > iterations,
        key,
        format!("has no effect above train.train_iters = {iterations}: it is never full"),
    );
}

fn evaluates(draft: &Draft<'_>) -> bool {
    let validation = &draft.recipe.validation;
    validation.full_validation || validation.eval_iters.unwrap_or(0) > 0
}
