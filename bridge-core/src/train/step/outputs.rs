//! Outputs of a run: its reports, its checkpoints, and the locks on their folders.

use std::sync::Arc;

use bridge_dist::mesh::ProcessGroups;

use crate::checkpoint::SaveReport;
use crate::logging::{Ending, SaveStage};
use crate::resilience::Heartbeat;
use crate::train::engine::global_state::GlobalState;
use crate::train::ranks::agreement;
use crate::train::reporting::reporter::Reporter;
use crate::train::resume::checkpointing::{GradientDumps, NonPersistentSaves, Saver};
use crate::train::resume::error::ResumeError;
use crate::train::resume::lock::RunLock;

/// Outputs of this rank.
pub(in crate::train) struct Outputs {
    pub reporter: Reporter,
    /// `None` without `checkpoint.save`.
    pub saver: Option<Saver>,
    /// `None` without `checkpoint.non_persistent_save_interval`.
    pub non_persistent: Option<NonPersistentSaves>,
    /// Dumps of gradients.
    pub dumps: GradientDumps,
    /// Locks on the run's folders, on rank 0 until the run ends.
    pub lock: Option<RunLock>,
    /// The step of the last persistent checkpoint.
    pub last_saved_step: Option<u64>,
    /// True if the run resumes from a temporary save: if it takes no further step, no other save
    /// has its state.
    pub from_non_persistent: bool,
    /// Heartbeat of the rank: other threads see which checkpoints are complete.
    pub heartbeat: Arc<Heartbeat>,
}

impl Outputs {
    /// Collects the outcome of a save in the background, if one has ended.
    pub fn poll_saves(&mut self, state: &GlobalState, groups: &ProcessGroups) -> Result<(), ResumeError> {
        let ended = self.saver.as_mut().map_or(Ok(None), Saver::poll)?;
        self.saved_in_background(state, groups, ended.as_ref());
        Ok(())
    }

    /// Waits for the save in the background, if there is one.
    pub fn await_save(&mut self, state: &GlobalState, groups: &ProcessGroups) -> Result<(), ResumeError> {
        let ended = self.saver.as_mut().map_or(Ok(None), Saver::finish)?;
        self.saved_in_background(state, groups, ended.as_ref());
        Ok(())
    }

    fn saved_in_background(&mut self, state: &GlobalState, groups: &ProcessGroups, report: Option<&SaveReport>) {
        if let Some(report) = report {
            self.heartbeat.checkpoint_saved(report.iteration);
        }
        if let Some(report) = report.filter(|_| agreement::is_rank_zero(groups)) {
            self.reporter.save(state, SaveStage::Ended, report.iteration, Some(report));
        }
    }

    /// Waits for saves and writes outstanding output. Afterwards other runs may use the run's
    /// folders.
    pub fn finish(&mut self, state: &GlobalState, groups: &ProcessGroups, ending: Ending) -> Result<(), ResumeError> {
        let saved = self.saver.as_mut().map_or(Ok(None), Saver::finish);
        if let Ok(report) = &saved {
            self.saved_in_background(state, groups, report.as_ref());
        }
        // A persistent checkpoint now has the state of the temporary saves.
        if saved.is_ok()
            && self.last_saved_step == Some(state.train_state.step)
            && let Some(Err(error)) = self.non_persistent.as_ref().map(NonPersistentSaves::remove)
        {
            self.reporter.warn(&format!("temporary saves were not deleted: {error}"));
        }
        self.reporter.finish(state, ending);
        self.lock = None;
        Ok(saved.map(drop)?)
    }
}
