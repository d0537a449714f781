//! Differences between a schedule and that of the checkpoint, in the units of both recipes, and
//! under the setting that gives each value.

use toml::{Table, Value};

use crate::checkpoint::Checkpoint;
use crate::config::RunConfig;
use crate::schedule::{SchedulerStateError, StateMismatch};

const BATCH: &str = "train.global_batch_size";
const SAMPLES: &str = "train.train_samples";
const FRACTION: &str = "scheduler.lr_warmup_fraction";

/// Schedule values of `error`, as settings of this run and of the checkpoint's.
pub(super) fn in_words_of_recipes(
    config: &RunConfig,
    checkpoint: &Checkpoint,
    error: SchedulerStateError,
) -> SchedulerStateError {
    let SchedulerStateError::Mismatch(mismatches) = error else { return error };
    let [here, there] = recipes(config, checkpoint);
    SchedulerStateError::Mismatch(told(&here, &there, mismatches))
}

/// Samples that an iteration of the checkpoint's schedule counts, and one of this run's. They are
/// the same unless both schedules count iterations: an iteration of another batch size is one
/// iteration nevertheless.
pub(super) fn iteration_samples(config: &RunConfig, checkpoint: &Checkpoint) -> [u64; 2] {
    let [here, there] = recipes(config, checkpoint);
    let batch = |recipe: &Recipe| recipe.number(BATCH).map_or(1, |batch| batch as u64);
    if here.counts_samples() || there.counts_samples() { [1, 1] } else { [batch(&there), batch(&here)] }
}

/// The recipes of this run and of the checkpoint.
fn recipes(config: &RunConfig, checkpoint: &Checkpoint) -> [Recipe; 2] {
    let here = Recipe(config.to_toml().parse().unwrap_or_default());
    // Weights that another program saved may have no recipe: then this run's recipe is assumed.
    let there = checkpoint.run_config().ok().and_then(|text| text.parse().ok()).map(Recipe);
    let there = there.filter(|recipe| recipe.get(BATCH).is_some()).unwrap_or_else(|| here.clone());
    [here, there]
}

/// A recipe with all its settings.
#[derive(Clone, Debug)]
struct Recipe(Table);

impl Recipe {
    fn get(&self, key: &str) -> Option<&Value> {
        let (section, name) = key.split_once('.')?;
        self.0.get(section)?.get(name)
    }

    fn number(&self, key: &str) -> Option<f64> {
        let value = self.get(key)?;
        value.as_float().or_else(|| Some(value.as_integer()? as f64))
    }

    fn counts_samples(&self) -> bool {
        self.get(SAMPLES).is_some()
    }

    /// A number of samples as the recipe counts.
    fn length(&self, samples: &str) -> String {
        let unit = if self.counts_samples() { 1.0 } else { self.number(BATCH).unwrap_or(1.0) };
        samples.parse::<f64>().map_or_else(|_| samples.into(), |samples| (samples / unit).to_string())
    }
}

fn told(here: &Recipe, there: &Recipe, mismatches: Vec<StateMismatch>) -> Vec<StateMismatch> {
    let (decay, warmup, all) = match here.counts_samples() {
        true => ("scheduler.lr_decay_samples", "scheduler.lr_warmup_samples", SAMPLES),
        false => ("scheduler.lr_decay_iters", "scheduler.lr_warmup_iters", "train.train_iters"),
    };
    let is_decay_given = [here, there].iter().any(|recipe| recipe.get(decay).is_some());
    let unit = |recipe: &Recipe| if recipe.counts_samples() { "samples" } else { "iterations" };
    let of_all = |field, run: &str, checkpoint: &str| {
        // Where both count iterations, the checkpoint's lengths have been converted to iterations
        // of this run's batch.
        let unit_of_checkpoint = if here.counts_samples() || there.counts_samples() { there } else { here };
        let (run, checkpoint) = (here.length(run), unit_of_checkpoint.length(checkpoint));
        match unit(here) == unit(there) {
            true => StateMismatch { field, run, checkpoint },
            false => StateMismatch {
                field,
                run: format!("{run} {}", unit(here)),
                checkpoint: format!("{checkpoint} {}", unit(there)),
            },
        }
    };
    let mut told = Vec::new();
    for StateMismatch { field, run, checkpoint } in mismatches {
        told.push(match field {
            "max_lr" => StateMismatch { field: "optimizer.lr", run, checkpoint },
            "min_lr" => StateMismatch { field: "optimizer.min_lr", run, checkpoint },
            "lr_decay_style" => StateMismatch { field: "scheduler.lr_decay_style", run, checkpoint },
            "start_wd" => StateMismatch { field: "scheduler.start_weight_decay", run, checkpoint },
            "end_wd" => StateMismatch { field: "scheduler.end_weight_decay", run, checkpoint },
            "wd_incr_style" => StateMismatch { field: "scheduler.weight_decay_incr_style", run, checkpoint },
            "lr_warmup_steps" => match (here.number(FRACTION), there.number(FRACTION)) {
                // Warmup is a fraction of the schedule's length, and a different length is reported
                // separately.
                (Some(run), Some(checkpoint)) => {
                    StateMismatch { field: FRACTION, run: run.to_string(), checkpoint: checkpoint.to_string() }
                }
                _ => of_all(warmup, &run, &checkpoint),
            },
            "lr_decay_steps" => of_all(if is_decay_given { decay } else { all }, &run, &checkpoint),
            "wd_incr_steps" => of_all(all, &run, &checkpoint),
            other => StateMismatch { field: other, run, checkpoint },
        });
    }
    // Settings that are the same are others' lengths: without a decay of its own, for instance, two
    // lengths of the schedule are one setting.
    told.retain(|mismatch| mismatch.run != mismatch.checkpoint);
    told.dedup();
    told
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recipe(text: &str) -> Recipe {
        Recipe(text.parse().expect("a table"))
    }

    /// Messages about lengths in samples: warm-up, decay, total.
    fn lengths(here: &str, there: &str, samples: [[u64; 2]; 3]) -> Vec<String> {
        let fields = ["lr_warmup_steps", "lr_decay_steps", "wd_incr_steps"];
        let differing = fields.into_iter().zip(samples).filter(|(_, [run, checkpoint])| run != checkpoint);
        let mismatch = |(field, [run, checkpoint]): (&'static str, [u64; 2])| StateMismatch {
            field,
            run: run.to_string(),
            checkpoint: checkpoint.to_string(),
        };
        let told = told(&recipe(here), &recipe(there), differing.map(mismatch).collect());
        told.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_fraction_that_is_the_same_is_not_told() {
        let of = |iters: u64, fraction: f64| {
            format!(
                "train = {{ global_batch_size = 4, train_iters = {iters} }}\nscheduler.lr_warmup_fraction = {fraction}"
            )
        };
        let all = "`train.train_iters` is 40 in this run and 20 in the checkpoint";
        let told = lengths(&of(40, 0.1), &of(20, 0.1), [[16, 8], [160, 80], [160, 80]]);
        assert_eq!(told, [all]);
        let told = lengths(&of(40, 0.2), &of(20, 0.1), [[32, 8], [160, 80], [160, 80]]);
        assert_eq!(told, ["`scheduler.lr_warmup_fraction` is 0.2 in this run and 0.1 in the checkpoint", all]);
    }

    #[test]
    fn iterations_of_another_batch_are_told_as_iterations() {
        let of = |batch: u64, iters: u64| {
            format!("train = {{ global_batch_size = {batch}, train_iters = {iters} }}\nscheduler.lr_warmup_iters = 2")
        };
        // The checkpoint's lengths come in iterations of the batch here.
        let told = lengths(&of(8, 30), &of(4, 20), [[16, 16], [240, 160], [240, 160]]);
        assert_eq!(told, ["`train.train_iters` is 30 in this run and 20 in the checkpoint"]);
    }

    #[test]
    fn each_side_has_its_own_unit() {
        let here = "train = { global_batch_size = 8, train_samples = 160 }\nscheduler.lr_warmup_samples = 16";
        let there = "train = { global_batch_size = 4, train_iters = 20 }\nscheduler.lr_warmup_iters = 2";
        let told = lengths(here, there, [[16, 8], [160, 80], [160, 80]]);
        assert_eq!(
            told,
            [
                "`scheduler.lr_warmup_samples` is 16 samples in this run and 2 iterations in the checkpoint",
                "`train.train_samples` is 160 samples in this run and 20 iterations in the checkpoint",
            ]
        );
        let given = format!("{there}\nscheduler.lr_decay_iters = 15");
        let told = lengths(&given, there, [[8, 8], [60, 80], [80, 80]]);
        assert_eq!(told, ["`scheduler.lr_decay_iters` is 15 in this run and 20 in the checkpoint"]);
    }
}
