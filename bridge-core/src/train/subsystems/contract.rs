//! Interface between loop and subsystems: the events, the accessible state, and the requests.
//! The other files of this folder implement them.

use std::path::{Path, PathBuf};

use bridge_dist::mesh::ProcessGroups;
use burn::tensor::Device;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::model::ModelChunk;
use crate::timers::Timers;
use crate::train::engine::global_state::GlobalState;
use crate::train::error::CommonError;
use crate::train::reporting::report::{EvaluationReport, StepReport, TrainEnd};
use crate::train::reporting::reporter::Reporter;
use crate::train::step::training::Training;
use crate::train::subsystems::error::SubsystemError;

/// Something that accompanies training, called by the loop at fixed places, on the training thread
/// of every rank that has it. Every method does nothing by default.
///
/// At each place subsystems are called in one order: those that measure, the program's own in the
/// order of registration, those that judge (`Subsystems::new` has the list). An error ends the run,
/// after the sinks have been served.
pub trait Subsystem: Send {
    /// Name for messages.
    fn name(&self) -> &str;

    /// Exchange of the methods' results across ranks. Only asked of a program's own subsystems.
    fn agreement(&self) -> Agreement {
        Agreement::Exchanged
    }

    /// All is set up (and a checkpoint loaded, if there was one); the first step comes next.
    ///
    /// # Errors
    /// An error prevents training.
    fn on_run_start(&mut self, _run: &mut RunContext) -> Result<(), SubsystemError> {
        Ok(())
    }

    /// A step comes next.
    ///
    /// # Errors
    /// The step is not made.
    fn before_step(&mut self, _run: &mut RunContext) -> Result<(), SubsystemError> {
        Ok(())
    }

    /// A step is done and counted; its record is about to be written. Figures added to
    /// `step.figures` are written with the record.
    ///
    /// # Errors
    /// The step is not reported.
    fn measure(&mut self, _run: &mut RunContext, _step: &mut StepReport) -> Result<(), SubsystemError> {
        Ok(())
    }

    /// A step is done, counted and reported.
    ///
    /// # Errors
    /// The step fails, and the run with it.
    fn after_step(&mut self, _run: &mut RunContext, _step: &StepReport) -> Result<LoopRequest, SubsystemError> {
        Ok(LoopRequest::default())
    }

    /// An evaluation is done and reported. The request is carried out at the end of the iteration
    /// that evaluated; after training, it is ignored.
    ///
    /// # Errors
    /// They end the run.
    fn on_evaluation(
        &mut self,
        _run: &mut RunContext,
        _report: &EvaluationReport,
    ) -> Result<LoopRequest, SubsystemError> {
        Ok(LoopRequest::default())
    }

    /// Reason to end training though iterations are left; `None` to go on. Called before each
    /// iteration. The run then ends as it does after its last iteration.
    fn stop_reason(&self, _state: &GlobalState) -> Option<String> {
        None
    }

    /// A checkpoint is about to be made. Values put into `state` under a key of the subsystem's own
    /// are passed to [`Subsystem::on_load`]. Only the state of rank 0 is saved: gather values that
    /// differ between ranks.
    ///
    /// # Errors
    /// An error prevents the save.
    fn on_save(&mut self, _run: &mut RunContext, _state: &mut Map<String, Value>) -> Result<(), SubsystemError> {
        Ok(())
    }

    /// A checkpoint that must not be deleted to make room for others.
    fn protected_checkpoint(&self) -> Option<PathBuf> {
        None
    }

    /// A checkpoint was handed to the writer (which may still be writing, with `async_save`).
    ///
    /// # Errors
    /// They end the run.
    fn after_save(&mut self, _run: &mut RunContext, _folder: &Path) -> Result<(), SubsystemError> {
        Ok(())
    }

    /// The run continues from a checkpoint.
    ///
    /// # Errors
    /// State that cannot be understood.
    fn on_load(&mut self, _run: &mut RunContext, _loaded: &Loaded) -> Result<(), SubsystemError> {
        Ok(())
    }

    /// Training is over, and `end` says why. Every `on_run_start` is followed by one `on_run_end`,
    /// also if a step failed. Evaluations at the end of a run come later. A panic other than a
    /// communication error ends the thread without this call.
    ///
    /// # Errors
    /// An error fails a run whose training ended in order.
    fn on_run_end(&mut self, _run: &mut RunContext, _end: TrainEnd<'_>) -> Result<(), SubsystemError> {
        Ok(())
    }
}

/// Agreement of a subsystem's results across ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Agreement {
    /// Results may differ, or ranks have other subsystems: ranks exchange results after each call,
    /// a few bytes, and follow each other's requests.
    Exchanged,
    /// All ranks have the subsystem, and its results are equal on all of them: nothing is
    /// exchanged.
    Symmetric,
}

/// Request of a subsystem after a step. Ranks agree on it: if one rank requests something, all
/// ranks do it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoopRequest {
    /// Lines for the console.
    pub notes: Vec<String>,
    /// Lines for the log file, and for a console that shows everything.
    pub details: Vec<String>,
    /// True to save a checkpoint, if the run saves any.
    pub saves: bool,
    /// The code to end the process with, and why. A checkpoint is saved before.
    pub exit: Option<(i32, String)>,
}

impl LoopRequest {
    /// Asks for a line on the console.
    #[must_use]
    pub fn note(mut self, text: impl Into<String>) -> Self {
        self.notes.push(text.into());
        self
    }

    /// Asks for a line in the log file, and on a console that shows everything.
    #[must_use]
    pub fn detail(mut self, text: impl Into<String>) -> Self {
        self.details.push(text.into());
        self
    }

    /// Asks for a checkpoint.
    #[must_use]
    pub fn save(mut self) -> Self {
        self.saves = true;
        self
    }

    /// Asks to end the process with `code`.
    #[must_use]
    pub fn exit(mut self, code: i32, why: impl Into<String>) -> Self {
        self.exit = Some((code, why.into()));
        self
    }

    /// Adds another request; of two exits the first counts.
    pub(in crate::train) fn join(&mut self, other: Self) {
        self.notes.extend(other.notes);
        self.details.extend(other.details);
        self.saves |= other.saves;
        self.exit = self.exit.take().or(other.exit);
    }
}

/// State of a run that a subsystem sees.
pub struct RunContext<'a> {
    /// The configuration, and how far the run is.
    pub state: &'a GlobalState,
    /// The ranks of the run, as this one sees them.
    pub groups: &'a ProcessGroups,
    pub(in crate::train) training: &'a mut Training,
    pub(in crate::train) timers: &'a Timers,
    pub(in crate::train) reporter: &'a Reporter,
}

impl RunContext<'_> {
    /// The model's chunks on this rank.
    pub fn chunks(&self) -> &[Box<dyn ModelChunk>] {
        &self.training.chunks
    }

    /// The device of this rank, with autodiff.
    pub fn device(&self) -> &Device {
        &self.training.device
    }

    /// Holds the learning rate of the next steps at `learning_rate`, in place of the schedule. All
    /// ranks hold the same one.
    pub fn hold_learning_rate(&mut self, learning_rate: f64) {
        self.training.scheduler.hold(learning_rate);
    }

    /// Prints a warning; on rank 0 to the console, on others to their own file.
    pub fn warn(&self, text: &str) {
        self.reporter.warn(text);
    }

    /// Prints a line; on rank 0 only.
    pub fn note(&self, text: &str) {
        self.reporter.note(text);
    }

    /// Prints the lines of a request.
    pub(in crate::train) fn tell(&self, request: &LoopRequest) {
        request.notes.iter().for_each(|note| self.reporter.note(note));
        request.details.iter().for_each(|detail| self.reporter.debug(detail));
    }
}

/// A checkpoint that a run continues from.
#[derive(Clone, Copy, Debug)]
pub struct Loaded<'a> {
    /// Folder of the checkpoint.
    pub folder: &'a Path,
    /// State that subsystems saved; `None` if only weights are loaded.
    pub state: Option<&'a Map<String, Value>>,
}

impl Loaded<'_> {
    /// Value that was saved under `key`.
    ///
    /// # Errors
    /// If it cannot be understood.
    pub fn field<T: serde::de::DeserializeOwned>(&self, key: &str) -> Result<Option<T>, CommonError> {
        let Some(value) = self.state.and_then(|state| state.get(key)) else { return Ok(None) };
        serde_json::from_value(value.clone()).map(Some).map_err(|error| CommonError::BadState {
            path: self.folder.to_owned(),
            field: key.to_owned(),
            message: error.to_string(),
        })
    }
}

/// State of a subsystem as it is saved.
///
/// # Errors
/// A value that JSON cannot express.
pub fn saved<T: Serialize>(state: &T) -> Result<Value, CommonError> {
    serde_json::to_value(state).map_err(|error| CommonError::Internal(format!("state that cannot be saved: {error}")))
}
