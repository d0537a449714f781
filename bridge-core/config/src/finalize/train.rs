//! The rules of `[train]`, `[validation]`, and of the top-level settings.

use super::super::error::ErrorKind;
use super::super::node::Node;
use super::super::run_config::{FinalTraining, FinalValidation, ParallelSizes};
use super::Draft;

/// Devices that a recipe may request; the runner checks whether one was compiled in. `cpu` is
/// `flex`.
const DEVICES: [&str; 5] = ["flex", "cpu", "cuda", "wgpu", "vulkan"];

/// The name of the run, filled in.
pub(super) fn name(draft: &mut Draft<'_>) -> String {
    let name = draft.recipe.name.get_or_insert_with(|| "run".into()).clone();
    let is_file_name =
        !name.is_empty() && name != "." && name != ".." && !name.contains(['/', '\\', '\0']) && name.len() <= 200;
    if !is_file_name {
        let message = "names a folder, so it must be a plain file name";
        draft.error(ErrorKind::OutOfRange, "name", message);
    }
    name
}

/// Checks the device's name.
pub(super) fn device(draft: &mut Draft<'_>) {
    let device = draft.recipe.device.clone();
    let (name, index) = match device.split_once(':') {
        Some((name, index)) => (name, Some(index)),
        None => (device.as_str(), None),
    };
    if !matches!(name, "flex" | "cpu") && draft.recipe.model.deterministic_mode {
        let message = format!("not implemented yet on device = {device:?}: sums there have no fixed order");
        draft.error(ErrorKind::NotImplemented, "model.deterministic_mode", message);
    }
    let is_index = index.is_none_or(|index| index.parse::<u16>().is_ok());
    if DEVICES.contains(&name) && is_index {
        return;
    }
    draft.unknown_name("device", "unknown device", (&device, name), &DEVICES, ", with :N for the N-th");
}

/// Checks batch sizes and the length of training.
pub(super) fn resolve(draft: &mut Draft<'_>, parallel: &ParallelSizes) -> FinalTraining {
    let train = draft.recipe.train.clone();
    for (key, is_given) in [
        ("train.micro_batch_size", train.micro_batch_size.is_some()),
        ("train.global_batch_size", train.global_batch_size.is_some()),
    ] {
        if !is_given {
            draft.missing(key, "must be given");
        }
    }
    let train_iters = train_iters(draft);
    // The range check reports zero; 1 keeps the divisions below defined.
    let micro_batch_size = train.micro_batch_size.unwrap_or(1).max(1);
    let unit = micro_batch_size.saturating_mul(parallel.data);
    let global_batch_size = train.global_batch_size.unwrap_or(unit).max(1);
    batch_divides(draft, global_batch_size, unit);
    let rampup_batch_size = rampup(draft, global_batch_size, unit);
    draft.require(
        train.iterations_to_skip.iter().all(|iteration| *iteration <= train_iters),
        "train.iterations_to_skip",
        format!("names an iteration that does not exist: the last one is {train_iters} (train.train_iters, train.train_samples)"),
    );
    FinalTraining {
        micro_batch_size,
        global_batch_size,
        train_iters,
        num_microbatches: global_batch_size / unit,
        rampup_batch_size,
        config: train,
    }
}

fn train_iters(draft: &mut Draft<'_>) -> usize {
    let train = draft.recipe.train.clone();
    if train.num_epochs.is_some() {
        return NOT_KNOWN;
    }
    match (train.train_iters, train.train_samples) {
        (None, None) => {
            draft.missing("train.train_iters", "this, train.train_samples or train.num_epochs must be given");
            1
        }
        (Some(iters), _) => iters,
        (None, Some(samples)) => {
            let iters = samples / train.global_batch_size.unwrap_or(1).max(1);
            draft.require(iters > 0, "train.train_samples", "is less than one train.global_batch_size");
            iters
        }
    }
}

/// More iterations than any run has: how many there are is known when the data has been read
/// (`RunConfig::with_epoch`).
const NOT_KNOWN: usize = 1_000_000_000;

fn batch_divides(draft: &mut Draft<'_>, global_batch_size: usize, unit: usize) {
    let train = draft.recipe.train.clone();
    if train.global_batch_size.is_none() || train.micro_batch_size.is_none() {
        return;
    }
    let can_round = train.decrease_batch_size_if_needed && global_batch_size >= unit;
    draft.require(
        global_batch_size.is_multiple_of(unit) || can_round,
        "train.global_batch_size",
        format!(
            "must be a multiple of train.micro_batch_size x data-parallel size = {unit}, or be rounded down to one by \
             train.decrease_batch_size_if_needed"
        ),
    );
}

fn rampup(draft: &mut Draft<'_>, global: usize, unit: usize) -> Option<[usize; 3]> {
    let key = "train.rampup_batch_size";
    let [start, increment, samples] = draft.recipe.train.rampup_batch_size?;
    if start == 0 || increment == 0 {
        let message = "must be [start, increment, samples]; start and increment must be at least 1";
        draft.error(ErrorKind::OutOfRange, key, message);
        return None;
    }
    if start == global {
        return None;
    }
    if start > global {
        draft.conflict(key, format!("starts above train.global_batch_size = {global}"));
        return None;
    }
    draft.require(
        (global - start).is_multiple_of(increment),
        key,
        format!("its increments from {start} do not reach train.global_batch_size = {global}"),
    );
    draft.require(samples > 0, key, "must grow over at least 1 sample");
    let divides = start.is_multiple_of(unit) && increment.is_multiple_of(unit);
    let can_round = draft.recipe.train.decrease_batch_size_if_needed && start >= unit;
    draft.require(
        divides || can_round,
        key,
        format!(
            "start and increment must be multiples of train.micro_batch_size x data-parallel size = {unit}, or be \
             rounded down to them by train.decrease_batch_size_if_needed"
        ),
    );
    Some([start, increment, samples])
}

/// Fills in and checks evaluation batches.
pub(super) fn resolve_validation(
    draft: &mut Draft<'_>,
    parallel: &ParallelSizes,
    train: &FinalTraining,
) -> FinalValidation {
    let own_batch = draft.recipe.validation.eval_global_batch_size.is_some()
        || draft.recipe.validation.eval_micro_batch_size.is_some();
    let can_round = train.decrease_batch_size_if_needed;
    let validation = &mut draft.recipe.validation;
    let micro = *validation.eval_micro_batch_size.get_or_insert(train.micro_batch_size);
    let unit = micro.max(1).saturating_mul(parallel.data);
    let batch = train.global_batch_size;
    // The batch size that training uses if it may round down.
    let batch = if can_round { (batch / unit * unit).max(unit) } else { batch };
    let global = *validation.eval_global_batch_size.get_or_insert(batch);
    let config = validation.clone();
    // A batch size copied from training was checked there.
    let key = if draft.raw.validation.eval_global_batch_size.is_some() {
        "validation.eval_global_batch_size"
    } else {
        "validation.eval_micro_batch_size"
    };
    draft.require(
        !own_batch || global.is_multiple_of(unit),
        key,
        format!(
            "validation.eval_global_batch_size = {global} must be a multiple of validation.eval_micro_batch_size x \
             data-parallel size = {unit}"
        ),
    );
    FinalValidation {
        eval_iters: config.eval_iters.unwrap_or(0),
        eval_global_batch_size: global,
        eval_micro_batch_size: micro,
        num_microbatches: global / unit,
        config,
    }
}

/// Moves the values of old names to `[validation]`.
pub(super) fn deprecated_names(draft: &mut Draft<'_>) {
    for name in ["eval_iters", "eval_interval", "skip_train"] {
        let (old, new) = (format!("train.{name}"), format!("validation.{name}"));
        let value = draft.value(&old).filter(|value| !value.is_null());
        let Some(value) = value else { continue };
        if draft.value(&new).as_ref() == Some(&value) || renamed(draft, name) {
            draft.set(&new, &value);
        }
        draft.set(&old, &Node::null());
    }
}

/// True if the value of the old name may be used.
fn renamed(draft: &mut Draft<'_>, field: &str) -> bool {
    let (old, new) = (format!("train.{field}"), format!("validation.{field}"));
    if draft.is_explicit(&new) {
        draft.conflict(&old, format!("is the old name of {new}, which has a different value"));
        return false;
    }
    draft.warnings.push(format!("{old} is the old name of {new}"));
    true
}
