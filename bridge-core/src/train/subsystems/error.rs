//! Errors of subsystems.

use std::path::PathBuf;

use crate::resilience::rerun::{RerunCheckpointError, UnexpectedResult};
use crate::train::error::{CommonError, ErrorClass, room_error};

/// Why a subsystem fails. Errors of a program's own subsystems are
/// [`SubsystemError::Subsystem`].
#[derive(thiserror::Error)]
pub enum SubsystemError {
    /// An error that several modules of the training loop share.
    #[error(transparent)]
    Common(CommonError),
    /// A subsystem of the program failed.
    #[error("{name}: {source}")]
    Subsystem {
        /// Name of the subsystem.
        name: String,
        /// Error that the subsystem returned.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A loss did not pass validation.
    #[error("{result} ({setting} = false continues instead)")]
    UnexpectedResult {
        /// The unexpected result, and where it was found.
        result: Box<UnexpectedResult>,
        /// The setting that enables the validation.
        setting: &'static str,
    },
    /// The rerun state in a checkpoint cannot be restored.
    #[error(transparent)]
    RerunState(#[from] RerunCheckpointError),
    /// Data-parallel replicas have different parameters
    /// (`train.check_weight_hash_across_dp_replicas_interval`).
    #[error("iteration {iteration}: replicas of the model do not have the same parameters; {since}; {found}")]
    ReplicasDiffer {
        /// Last iteration before the replicas were compared.
        iteration: u64,
        /// Ranks whose parameters differ from those of most ranks, with hosts, devices and the
        /// difference.
        found: String,
        /// Clause of the message that says at which iteration the replicas were last equal.
        since: String,
    },
    /// `train.max_consecutive_skipped_iterations` iterations in a row had gradients or losses that
    /// are not finite.
    #[error(
        "iteration {iteration}: the last {count} iterations were skipped: non-finite gradients or loss \
         (train.max_consecutive_skipped_iterations); {}",
        match last_good {
            Some(folder) => format!("the last good checkpoint is {}", folder.display()),
            None => "no checkpoint from before them is left".to_owned(),
        }
    )]
    TooManySkippedSteps {
        /// Last of the skipped iterations.
        iteration: u64,
        /// Number of skipped iterations.
        count: u64,
        /// Last checkpoint before the first skipped iteration.
        last_good: Option<PathBuf>,
    },
    /// Section timeouts are enabled, and no monitor watches the run.
    #[error(
        "ft.enable_ft_package: no monitor watches this run; `bridge train RECIPE --max-restarts N` starts one (a program names a monitor's socket in \
         `RunOptions.rank_env`)"
    )]
    NoMonitor,
}

room_error! { SubsystemError, wraps Common;
    Self::NoMonitor => ErrorClass::BadInput,
    _ => ErrorClass::Failed,
}
