//! Ends a run that has learned nothing for `train.max_consecutive_skipped_iterations` iterations: it would go on like that for ever. Nothing is
//! saved then, so that no good checkpoint has to make room.

use std::path::Path;

use serde_json::{Map, Value};

use crate::resilience::Stall;
use crate::train::TrainError;
use crate::train::report::StepReport;
use crate::train::subsystem::{Loaded, RunContext, Subsystem, Verdict, saved};

/// Its state in `train_state.json`.
const KEY: &str = "skipped_iterations";

#[derive(Default)]
pub(super) struct StallWatch {
    /// Iterations in a row that the run has learned nothing from.
    stall: Stall,
}

impl Subsystem for StallWatch {
    fn name(&self) -> &str {
        "stall"
    }

    fn after_step(&mut self, run: &mut RunContext, step: &StepReport) -> Result<Verdict, TrainError> {
        let count = self.stall.count(step.learning);
        if count < run.state.config.train.max_consecutive_skipped_iterations as u64 {
            return Ok(Verdict::default());
        }
        let last_good = self.stall.last_good().filter(|folder| folder.is_dir()).map(Path::to_owned);
        Err(TrainError::NothingLearned { iteration: step.iteration, count, last_good })
    }

    fn on_save(&mut self, _run: &mut RunContext, state: &mut Map<String, Value>) -> Result<(), TrainError> {
        if self.stall.is_standing_still() {
            state.insert(KEY.to_owned(), saved(&self.stall)?);
        }
        Ok(())
    }

    fn after_save(&mut self, _run: &mut RunContext, folder: &Path) -> Result<(), TrainError> {
        self.stall.saved(folder.to_owned());
        Ok(())
    }

    fn on_load(&mut self, _run: &mut RunContext, loaded: &Loaded) -> Result<(), TrainError> {
        self.stall = loaded.field(KEY)?.unwrap_or_else(|| Stall::after(loaded.folder));
        Ok(())
    }
}
