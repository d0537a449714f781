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
    /// An error that other rooms make too.
    #[error(transparent)]
    Common(CommonError),
    /// The data of the run, or a tokenizer.
    #[error(transparent)]
    Input(#[from] InputError),
    /// The model of a teacher.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// A subsystem cannot save or restore its state.
    #[error(transparent)]
    Subsystem(#[from] SubsystemError),
    /// A checkpoint.
    #[error(transparent)]
    Checkpoint(Box<CheckpointError>),
    /// A checkpoint was requested and none exists.
    #[error("{key}: there is no checkpoint in {}", path.display())]
    NoCheckpoint {
        /// The setting that asks.
        key: &'static str,
        /// Folder that was searched.
        path: PathBuf,
    },
    /// Weights of another program cannot be started from.
    #[error("checkpoint.pretrained_checkpoint: {0}")]
    ForeignWeights(Box<dyn std::error::Error + Send + Sync>),
    /// A checkpoint of an adapter, and a base that it does not belong to.
    #[error(
        "checkpoint.pretrained_checkpoint: {}: expected the base of the adapter in {} ({expected}), found another ({found})",
        base.display(), checkpoint.display()
    )]
    AnotherBase {
        /// The checkpoint of the adapter.
        checkpoint: PathBuf,
        /// The base.
        base: PathBuf,
        /// The checksum that the checkpoint names.
        expected: String,
        /// Base that was found.
        found: String,
    },
    /// The parameters of a checkpoint are not those of the model.
    #[error("{source}; {}", match settings.as_slice() {
        [] => "no setting of [model] differs from the checkpoint's: is it of another kind of model?".to_owned(),
        settings => format!(
            "of what shapes depend on, the recipe says something else than the checkpoint's run_config.toml: {}; set it as it is there",
            settings.join(", ")
        ),
    })]
    AnotherModel {
        /// The first parameter that does not fit.
        source: Box<CheckpointError>,
        /// Settings that differ, with both values.
        settings: Vec<String>,
    },
    /// The names of parameters differ from those of a checkpoint.
    #[error(
        "{} does not match the model: {unmatched} (checkpoint.dist_ckpt_strictness = log_all would go on, and say so)",
        path.display()
    )]
    Unmatched {
        /// The checkpoint.
        path: PathBuf,
        /// In what they differ.
        unmatched: Unmatched,
    },
    /// The optimizer state in a checkpoint is another optimizer's or another model's.
    #[error(
        "{}: {count} optimizer tensors do not belong to this run's optimizer, `{name}` among them \
         (checkpoint.load_optim = false starts with fresh moments){}",
        path.display(),
        if settings.is_empty() { String::new() } else { format!("; changed since then: {}", settings.join(", ")) }
    )]
    ForeignOptimizerState {
        /// The checkpoint.
        path: PathBuf,
        /// Name of one of them.
        name: String,
        /// Number of them.
        count: usize,
        /// Settings of the optimizer that differ from the checkpoint's, with both values.
        settings: Vec<String>,
    },
    /// The schedule of a checkpoint.
    #[error(transparent)]
    SchedulerState(#[from] SchedulerStateError),
    /// The loss scale of a checkpoint.
    #[error(transparent)]
    LossScale(#[from] LossScaleError),
    /// A folder cannot be written to.
    #[error("{key}: cannot use {}: {message}", path.display())]
    Folder {
        /// The setting that names it.
        key: &'static str,
        /// The folder.
        path: PathBuf,
        /// Why not.
        message: String,
    },
    /// The disk of a folder is full, or a quota is used up: another start may find room.
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
        /// The other process's number.
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
