//! Contract of a sink, to which the records of a run go. The module `sinks` lists the sinks; the
//! loop decides on the consequences of their errors.

use bridge_data::untrusted_io;

use super::files::FileError;
use super::record::{LogLevel, Record, RunEnd, RunStart, SaveRecord, Split};
use bridge_config::RunConfig;

/// Why a sink could not write. It ends no run.
pub type SinkError = Box<dyn std::error::Error + Send + Sync>;

/// Failure without loss: the sink keeps the records and writes them later. The failure is reported,
/// and not counted as missing; a sink returns it once for each trouble.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Deferred(pub String);

/// Takes what a run tells. Sinks are served on rank 0 only, on the training thread: those of the
/// recipe in the order of their list, then those that the program hands in, the console last. Every
/// method does nothing by default.
///
/// # Errors
/// After an error of [`Self::on_run_start`] the run does not begin, unless the error is
/// [`Deferred`], which is a warning. Errors of all other methods are reported and counted, and the
/// run goes on.
pub trait Sink: Send {
    /// Name of the destination, for messages about failures.
    fn name(&self) -> &str;

    /// A warning about records that the sink lacks: those of iterations before a resume, or all if
    /// it cannot serve them.
    fn missing_history(&self) -> Option<String> {
        None
    }

    /// Training is about to begin.
    fn on_run_start(&mut self, _start: &RunStart) -> Result<(), SinkError> {
        Ok(())
    }

    /// A line of text.
    fn on_line(&mut self, _level: LogLevel, _text: &str) -> Result<(), SinkError> {
        Ok(())
    }

    /// A text that people rarely read, such as the times of a save.
    fn on_details(&mut self, text: &str) -> Result<(), SinkError> {
        self.on_line(LogLevel::Info, text)
    }

    /// The settings that differ from the defaults, before training.
    fn on_configuration(&mut self, text: &str) -> Result<(), SinkError> {
        self.on_details(text)
    }

    /// A step or an evaluation is done.
    fn on_record(&mut self, _record: &Record) -> Result<(), SinkError> {
        Ok(())
    }

    /// An evaluation has come as far as `text` says.
    fn on_evaluating(&mut self, _text: &str) {}

    /// A checkpoint was saved, or begun to be.
    fn on_save(&mut self, _save: &SaveRecord) -> Result<(), SinkError> {
        Ok(())
    }

    /// A temporary save was made, from which a run that is killed goes on: what waits of the
    /// iterations before is written.
    fn on_temporary_save(&mut self) -> Result<(), SinkError> {
        Ok(())
    }

    /// Training is over; evaluations may follow.
    fn on_train_end(&mut self) {}

    /// The run is over: what is left is written.
    fn on_run_end(&mut self, _end: &mut RunEnd) -> Result<(), SinkError> {
        Ok(())
    }
}

/// Context of opening a sink.
#[derive(Clone, Copy, Debug)]
pub struct SinkContext<'a> {
    /// The configuration.
    pub config: &'a RunConfig,
    /// Name of the run, which a run that resumes it has too.
    pub run: &'a str,
    /// Iterations that the run has done before. Later records in files, from an interrupted run,
    /// are dropped.
    pub iteration: u64,
    /// Samples that it has trained on before.
    pub consumed_samples: u64,
    /// Evaluations that a finished run repeats when it is started again.
    pub again: Option<MadeAgain>,
}

/// Evaluations after training. A run with nothing left to train repeats them, so their earlier
/// records are dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MadeAgain {
    /// Number of validations of the last iteration that were made during training, before the
    /// repeated ones. Their records are kept.
    pub kept_validations: usize,
}

impl MadeAgain {
    /// Part that a run of `config` repeats if its last iteration is `iteration`; `None` if it
    /// continues training.
    pub fn from_resume(config: &RunConfig, iteration: u64) -> Option<Self> {
        let validation = &config.validation;
        let is_over = validation.skip_train || iteration >= config.train.train_iters as u64;
        // A whole split that was validated during training is not validated once more after it, but
        // for a run that starts here.
        let stays = validation.is_due(iteration) && !validation.full_validation;
        is_over.then_some(Self { kept_validations: usize::from(stays) })
    }

    /// True if a record of an evaluation after the last iteration stays, after `validations`
    /// records that have stayed.
    pub fn keeps(self, split: Split, validations: usize) -> bool {
        split == Split::Valid && validations < self.kept_validations
    }
}

/// Why a sink could not be opened. The run does not begin.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// An output cannot be written.
    #[error("{0}: {1}")]
    Log(String, #[source] SinkError),
    /// An earlier run's output is damaged, or not a file.
    #[error("{0}: {1}")]
    Damaged(String, #[source] SinkError),
    /// A setting cannot be followed.
    #[error("{key}: {message}")]
    Setting {
        /// The setting.
        key: &'static str,
        /// Description of the fault.
        message: String,
    },
}

impl OpenError {
    /// `what` cannot be written: an error of the machine, or a file of another type is in its
    /// place.
    pub fn log(what: impl Into<String>, error: impl Into<SinkError>) -> Self {
        let (what, source) = (what.into(), error.into());
        if is_refused(source.as_ref()) { Self::Damaged(what, source) } else { Self::Log(what, source) }
    }

    /// As [`Self::log`]; an earlier run's damaged file is a file that has to be moved away.
    pub(super) fn file(what: impl Into<String>, error: FileError) -> Self {
        match error {
            FileError::Damaged(_) => Self::Damaged(what.into(), error.into()),
            FileError::Io(..) => Self::log(what, error),
        }
    }
}

/// True if a file was refused for its type.
fn is_refused(error: &(dyn std::error::Error + 'static)) -> bool {
    error.downcast_ref().is_some_and(untrusted_io::is_refused) || error.source().is_some_and(is_refused)
}

/// An opened sink; `None` where the recipe asks for none.
pub type Opened = Result<Option<Box<dyn Sink>>, OpenError>;
