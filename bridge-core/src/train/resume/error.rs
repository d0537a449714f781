//! Errors of saving and resuming.

use std::path::PathBuf;

use crate::checkpoint::CheckpointError;
use crate::schedule::{LossScaleError, SchedulerStateError};
use crate::train::data::error::InputError;
use crate::train::engine::error::EngineError;
use crate::train::error::{CommonError, ErrorClass, room_error};
use crate::train::subsystems::error::SubsystemError;
use crate::train::unmatched::Unmatched;

/// Why a run cannot save, or resume.
#[derive(thiserror::Error)]
pub enum ResumeError {
    /// An error that several modules of the training loop share.
    #[error(transparent)]
    Common(CommonError),
    /// The data of the run or a tokenizer cannot be read.
    #[error(transparent)]
    Input(#[from] InputError),
    /// The model of a teacher cannot be built.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// A subsystem cannot save or restore its state.
    #[error(transparent)]
    Subsystem(#[from] SubsystemError),
    /// A checkpoint cannot be read or written.
    #[error(transparent)]
    Checkpoint(Box<CheckpointError>),
    /// A checkpoint was requested and none exists.
    #[error("{key}: there is no checkpoint in {}", path.display())]
    NoCheckpoint {
        /// The setting that requests the checkpoint.
        key: &'static str,
        /// Folder that was searched.
        path: PathBuf,
    },
    /// Weights of another program cannot be loaded.
    #[error("checkpoint.pretrained_checkpoint: {0}")]
    ForeignWeights(Box<dyn std::error::Error + Send + Sync>),
    /// The checkpoint of an adapter was trained on another base.
    #[error(
        "checkpoint.pretrained_checkpoint: {}: expected the base of the adapter in {} ({expected}), found another ({found})",
        base.display(), checkpoint.display()
    )]
    AnotherBase {
        /// The checkpoint of the adapter.
        checkpoint: PathBuf,
        /// The base that was given.
        base: PathBuf,
        /// Checksum of the base that the adapter was trained on.
        expected: String,
        /// Checksum of the base that was given.
        found: String,
    },
    /// The parameters of a checkpoint are not those of the model.
    #[error("{source}; {}", match settings.as_slice() {
        [] => "no setting of [model] differs from the checkpoint's: is the checkpoint of another kind of model?".to_owned(),
        settings => format!(
            "settings that shapes depend on differ from the checkpoint's run_config.toml: {}; set them as they are there",
            settings.join(", ")
        ),
    })]
    AnotherModel {
        /// The first parameter that does not fit.
        source: Box<CheckpointError>,
        /// Settings of `[model]` that differ, with both values.
        settings: Vec<String>,
    },
    /// The names of parameters differ from those of a checkpoint.
    #[error(
        "{} does not match the model: {unmatched} (checkpoint.dist_ckpt_strictness = log_all continues with a warning)",
        path.display()
    )]
    Unmatched {
        /// The checkpoint.
        path: PathBuf,
        /// Names that only one of the two has.
        unmatched: Unmatched,
    },
    /// The optimizer state in a checkpoint belongs to another optimizer or another model.
    #[error(
        "{}: {count} optimizer tensors do not belong to this run's optimizer, `{name}` among them \
         (checkpoint.load_optim = false starts with fresh moments){}",
        path.display(),
        if settings.is_empty() { String::new() } else { format!("; changed since then: {}", settings.join(", ")) }
    )]
    ForeignOptimizerState {
        /// The checkpoint.
        path: PathBuf,
        /// Name of one of the optimizer tensors that do not belong to this run.
        name: String,
        /// Number of optimizer tensors that do not belong to this run.
        count: usize,
        /// Settings of the optimizer that differ from the checkpoint's, with both values.
        settings: Vec<String>,
    },
    /// The state of the schedule in a checkpoint cannot be restored.
    #[error(transparent)]
    SchedulerState(#[from] SchedulerStateError),
    /// The loss scale in a checkpoint cannot be restored.
    #[error(transparent)]
    LossScale(#[from] LossScaleError),
    /// A folder cannot be written to.
    #[error("{key}: cannot use {}: {message}", path.display())]
    Folder {
        /// The setting that names the folder.
        key: &'static str,
        /// The folder.
        path: PathBuf,
        /// Reason.
        message: String,
    },
    /// The disk of a folder is full, or a quota is used up. A restart may succeed.
    #[error("{key}: the disk of {} is full: {message}", path.display())]
    DiskFull {
        /// The setting that names the folder.
        key: &'static str,
        /// The folder.
        path: PathBuf,
        /// Message of the system.
        message: String,
    },
    /// Another run writes to a folder of this one.
    #[error("{key}: another run (process {holder}) is writing to {}; wait for it, or choose another folder", path.display())]
    InUse {
        /// The setting that names the folder.
        key: &'static str,
        /// The folder.
        path: PathBuf,
        /// Process ID of the other run.
        holder: String,
    },
}

room_error! { ResumeError, wraps Common, Input, Engine, Subsystem;
    Self::Checkpoint(error) if !error.is_bad_input() => ErrorClass::Failed,
    Self::DiskFull { .. } => ErrorClass::Failed,
    _ => ErrorClass::BadInput,
}

impl From<CheckpointError> for ResumeError {
    fn from(error: CheckpointError) -> Self {
        Self::Checkpoint(Box::new(error))
    }
}
