//! When to save, and when to stop.

use super::callbacks::CancelHandle;
use super::checkpointing::save_checkpoint;
use super::run::TrainingRun;
use super::{TrainError, ranks};
use crate::resilience::{Signal, SignalWatcher};

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
    let reason = exit_is_requested(run)?;
    let reason = reason.or_else(|| due(run.config.train.exit_interval).then_some(ExitReason::Interval(step)));
    let interval_save = due(run.config.checkpoint.save_interval) || due(run.config.checkpoint.save_retain_interval);
    if run.saves() && (interval_save || reason.is_some()) && run.last_saved_step != Some(step) {
        save_checkpoint(run)?;
    }
    Ok(reason)
}

/// The signal, cancellation or clock of any rank that asks for an exit. All ranks call this together.
pub(super) fn exit_is_requested(run: &TrainingRun) -> Result<Option<ExitReason>, TrainError> {
    let asked = Asked::on_all_ranks(run)?;
    let is_over = run.config.train.exit_duration_in_mins.is_some_and(|limit| asked.minutes > limit);
    Ok(asked.reason.or_else(|| is_over.then_some(ExitReason::Duration(asked.minutes))))
}

/// The signal or cancellation that has asked for an exit on any rank, where nothing is left to do that could take time. All ranks call this
/// together.
pub(super) fn exit_is_asked_for(run: &TrainingRun) -> Result<Option<ExitReason>, TrainError> {
    Ok(Asked::on_all_ranks(run)?.reason)
}

/// Where one rank hears that it should stop.
#[derive(Clone, Copy)]
pub(super) struct Requests<'a> {
    pub signals: Option<&'a SignalWatcher>,
    pub cancel: &'a CancelHandle,
}

impl<'a> Requests<'a> {
    pub fn of(run: &'a TrainingRun) -> Self {
        Self { signals: run.signals.as_ref(), cancel: &run.cancel }
    }

    /// The number of the signal that arrived, and whether the run was cancelled: figures of which the largest over all ranks decide.
    pub fn figures(&self) -> [f64; 2] {
        let signal = self.signals.and_then(SignalWatcher::received);
        [f64::from(signal.map_or(0, Signal::number)), f64::from(u8::from(self.cancel.is_cancelled()))]
    }

    /// Whether anything could ask.
    pub fn can_come(&self) -> bool {
        self.signals.is_some() || self.cancel.is_shared()
    }

    /// What the largest figures say.
    pub fn reason([signal, cancelled]: [f64; 2]) -> Option<ExitReason> {
        let signal = Signal::ALL.into_iter().find(|known| f64::from(known.number()) == signal);
        signal.map(ExitReason::Signal).or_else(|| (cancelled > 0.0).then_some(ExitReason::Cancelled))
    }
}

/// What asks for an exit from outside, on any rank, so that all ranks decide alike.
struct Asked {
    /// A watched signal that arrived, of several the one with the largest number, or cancellation.
    reason: Option<ExitReason>,
    /// Minutes since the program began, on the clock that is ahead.
    minutes: f64,
}

impl Asked {
    fn on_all_ranks(run: &TrainingRun) -> Result<Self, TrainError> {
        let [signal, cancelled] = Requests::of(run).figures();
        let mut figures = [signal, cancelled, run.started.elapsed().as_secs_f64() / 60.0];
        ranks::max(run.groups.world(), &mut figures)?;
        Ok(Self { reason: Requests::reason([figures[0], figures[1]]), minutes: figures[2] })
    }
}
