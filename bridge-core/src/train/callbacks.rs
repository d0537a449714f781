//! Watching and steering a run from outside: callbacks and the cancel handle.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::TrainError;
use super::evaluate::EvaluationReport;
use super::exit::ExitReason;
use super::run::GlobalState;
use super::step::StepReport;

/// Called by the loop at fixed places, on the training thread. Every method does nothing by default.
pub trait Callback: Send {
    /// All is set up (and a checkpoint loaded, if there was one); the first step comes next.
    fn on_train_start(&mut self, _state: &GlobalState) {}

    /// A step is done and counted.
    fn on_step_end(&mut self, _state: &GlobalState, _step: &StepReport) {}

    /// An evaluation is done.
    fn on_evaluate_end(&mut self, _state: &GlobalState, _report: &EvaluationReport) {}

    /// A checkpoint was handed to the writer (which may still be writing, with `async_save`).
    fn on_save(&mut self, _state: &GlobalState, _root: &Path) {}

    /// Training is over, and `end` says why: every `on_train_start` is followed by one of these, also when a step failed. Evaluations at
    /// the end of a run come after it. A panic that is no communication error ends the thread without it.
    fn on_train_end(&mut self, _state: &GlobalState, _end: TrainEnd<'_>) {}
}

/// How training ended: in order, for a reason, or with an error.
pub type TrainEnd<'a> = Result<&'a ExitReason, &'a TrainError>;

/// Asks a run to stop, between two micro-batches. Clones ask the same run.
#[derive(Clone, Debug, Default)]
pub struct CancelHandle(Arc<AtomicBool>);

impl CancelHandle {
    /// Asks the run to save a checkpoint (if it saves any) and stop. A step that is not complete then counts for nothing.
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether that was asked.
    pub fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Whether anyone else has it.
    pub(super) fn is_shared(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }
}
