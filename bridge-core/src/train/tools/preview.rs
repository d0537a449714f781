//! Values that each iteration of a run will use, without running it.

use serde::Serialize;

use crate::config::{ConfigError, ErrorKind, RunConfig};
use crate::schedule::{GroupSettings, NumMicrobatchesCalculator, OptimizerParamScheduler};
use crate::train::run::error::TrainError;
use crate::train::settings;

/// Values of one iteration.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ScheduleRow {
    /// Number of the iteration, from 1.
    pub iteration: u64,
    /// Learning rate.
    pub learning_rate: f64,
    /// Weight decay, before group factors.
    pub weight_decay: f64,
    /// Sequences.
    pub global_batch_size: u64,
    /// Sequences consumed before it.
    pub consumed_samples: u64,
}

/// The schedule of a run in which no step is skipped.
///
/// # Errors
/// If the schedule or the batch sizes contradict each other, or the run counts epochs, whose length
/// it does not know.
pub fn schedule_of(config: &RunConfig) -> Result<Vec<ScheduleRow>, TrainError> {
    if config.counts_epochs() {
        let message = "is known in iterations when the data has been read; give train.train_iters to see the schedule";
        let error = ConfigError::new(ErrorKind::Conflict, "train.num_epochs", message);
        return Err(error.with_location(config.location("train.num_epochs")).into());
    }
    let mut scheduler = OptimizerParamScheduler::new(config.scheduler.schedule.clone())?;
    let mut batches = NumMicrobatchesCalculator::new(settings::batch_size(config))?;
    let mut rows = Vec::with_capacity(config.train.train_iters);
    let mut consumed_samples = 0;
    for iteration in 1..=config.train.train_iters as u64 {
        batches.update(consumed_samples);
        let batch = batches.current_running_global_batch_size();
        let skipped = config.train.iterations_to_skip.contains(&(iteration as usize));
        let values = scheduler.values(&GroupSettings::default());
        rows.push(ScheduleRow {
            iteration,
            learning_rate: values.learning_rate,
            weight_decay: values.weight_decay,
            global_batch_size: batch,
            consumed_samples,
        });
        if !skipped {
            scheduler.step(config.schedule_steps(batch));
        }
        consumed_samples += batch;
    }
    Ok(rows)
}
