//! Ends a run that has learned nothing for `train.max_consecutive_skipped_iterations` iterations:
//! it would not recover. Nothing is saved then, so that retention deletes no good checkpoint.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use crate::resilience::{Learning, Stall};
use crate::train::exit_reason::ExitReason;
use crate::train::reporting::report::{StepReport, TrainEnd};
use crate::train::subsystems::contract::{Loaded, LoopRequest, RunContext, Subsystem, saved};
use crate::train::subsystems::error::SubsystemError;

/// Key of the state in `train_state.json`.
const KEY: &str = "skipped_iterations";

#[derive(Default)]
pub(super) struct StallWatch {
    /// Iterations in a row that the run has learned nothing from.
    stall: Stall,
    /// Iterations of this process; iterations before a resume are not counted.
    iterations: u64,
    /// Iterations of these that failed.
    failed: u64,
}

impl StallWatch {
    fn too_many_skipped_steps(&self, iteration: u64, count: u64) -> SubsystemError {
        let last_good = self.stall.last_good().filter(|folder| folder.is_dir()).map(Path::to_owned);
        SubsystemError::TooManySkippedSteps { iteration, count, last_good }
    }
}

impl Subsystem for StallWatch {
    fn name(&self) -> &str {
        "stall"
    }

    fn after_step(&mut self, run: &mut RunContext, step: &StepReport) -> Result<LoopRequest, SubsystemError> {
        let count = self.stall.count(step.learning);
        self.iterations += 1;
        self.failed += u64::from(step.learning == Learning::Failed);
        if count < run.state.config.train.max_consecutive_skipped_iterations as u64 {
            return Ok(LoopRequest::default());
        }
        Err(self.too_many_skipped_steps(step.iteration, count))
    }

    /// A run that ends before the limit, and has learned nothing, is not done.
    fn on_run_end(&mut self, run: &mut RunContext, end: TrainEnd<'_>) -> Result<(), SubsystemError> {
        let Self { iterations, failed, .. } = *self;
        if !matches!(end, Ok(ExitReason::Completed)) || failed == 0 {
            return Ok(());
        }
        if failed == iterations {
            return Err(self.too_many_skipped_steps(run.state.train_state.step, failed));
        }
        run.warn(&format!(
            "{failed} of {iterations} iterations were skipped: non-finite gradients or loss; the learning rate may be too high"
        ));
        Ok(())
    }

    /// The checkpoint is protected while the run is stalled.
    fn protected_checkpoint(&self) -> Option<PathBuf> {
        self.stall.last_good().filter(|_| self.stall.is_standing_still()).map(Path::to_owned)
    }

    fn on_save(&mut self, _run: &mut RunContext, state: &mut Map<String, Value>) -> Result<(), SubsystemError> {
        if self.stall.is_standing_still() {
            state.insert(KEY.to_owned(), saved(&self.stall)?);
        }
        Ok(())
    }

    fn after_save(&mut self, _run: &mut RunContext, folder: &Path) -> Result<(), SubsystemError> {
        self.stall.saved(folder.to_owned());
        Ok(())
    }

    fn on_load(&mut self, _run: &mut RunContext, loaded: &Loaded) -> Result<(), SubsystemError> {
        self.stall = loaded.field(KEY)?.unwrap_or_else(|| Stall::after(loaded.folder));
        Ok(())
    }
}
