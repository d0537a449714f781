//! When to save, and when to stop.

use super::TrainError;
use super::checkpointing::save_checkpoint;
use super::run::TrainingRun;
use crate::resilience::Signal;

/// Why training ended.
#[derive(Clone, Debug, PartialEq)]
pub enum ExitReason {
    /// All iterations are done.
    Completed,
    /// A watched signal arrived.
    Signal(Signal),
    /// The cancel handle was used.
    Cancelled,
    /// `train.exit_duration_in_mins` is over; the minutes that passed.
    Duration(f64),
    /// `train.exit_interval` divides the step.
    Interval(u64),
    /// The rerun state machine ends the process with this code.
    Rerun(i32),
}

impl ExitReason {
    /// Exit code of the process: 0, 16 or 17 from the rerun state machine, 128 + n after signal n.
    pub fn exit_code(&self) -> i32 {
        match self {
            Self::Completed | Self::Cancelled | Self::Duration(_) | Self::Interval(_) => 0,
            Self::Signal(signal) => signal.exit_code(),
            Self::Rerun(code) => *code,
        }
    }
}

impl std::fmt::Display for ExitReason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Completed => f.write_str("training is done"),
            Self::Signal(signal) => write!(f, "exiting program after receiving {}", signal.name()),
            Self::Cancelled => f.write_str("exiting because the run was cancelled"),
            Self::Duration(minutes) => write!(f, "exiting program after {minutes:.1} minutes"),
            Self::Interval(step) => write!(f, "exiting program at iteration {step}"),
            Self::Rerun(16) => {
                f.write_str("exiting with code 16: resume the run to tell a hardware fault from a real result")
            }
            Self::Rerun(code) => write!(f, "exiting with code {code}: a result did not pass validation"),
        }
    }
}

/// Saves a checkpoint where one is due, and says whether to stop. Saves at most once.
pub(super) fn checkpoint_and_decide_exit(run: &mut TrainingRun) -> Result<Option<ExitReason>, TrainError> {
    let step = run.state.train_state.step;
    let due = |interval: Option<usize>| interval.is_some_and(|n| step.is_multiple_of(n as u64));
    let reason = requested(run).or_else(|| {
        let minutes = run.started.elapsed().as_secs_f64() / 60.0;
        let over = run.config.train.exit_duration_in_mins.is_some_and(|limit| minutes > limit);
        over.then_some(ExitReason::Duration(minutes))
    });
    let reason = reason.or_else(|| due(run.config.train.exit_interval).then_some(ExitReason::Interval(step)));
    let interval_save = due(run.config.checkpoint.save_interval) || due(run.config.checkpoint.save_retain_interval);
    if run.saves() && (interval_save || reason.is_some()) && run.last_saved_step != Some(step) {
        save_checkpoint(run)?;
    }
    Ok(reason)
}

fn requested(run: &TrainingRun) -> Option<ExitReason> {
    if let Some(signal) = run.signals.as_ref().and_then(|signals| signals.received()) {
        return Some(ExitReason::Signal(signal));
    }
    run.cancel.is_cancelled().then_some(ExitReason::Cancelled)
}
