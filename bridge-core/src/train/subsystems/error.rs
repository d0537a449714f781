//! Errors of subsystems.

use std::path::PathBuf;

use crate::resilience::rerun::{RerunCheckpointError, UnexpectedResult};
use crate::train::error::{CommonError, ErrorClass, room_error};

/// Errors of subsystems, with [`SubsystemError::Subsystem`] for those of the program.
#[derive(thiserror::Error)]
pub enum SubsystemError {
    /// An error that other rooms make too.
    #[error(transparent)]
    Common(CommonError),
    /// A subsystem of the program failed.
    #[error("{name}: {source}")]
    Subsystem {
        /// Name of the subsystem.
        name: String,
        /// Why.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A loss did not pass validation.
    #[error("{result} ({setting} = false goes on instead)")]
    UnexpectedResult {
        /// Found result, and its place.
        result: Box<UnexpectedResult>,
        /// The setting that asked to look.
        setting: &'static str,
    },
    /// The rerun state of a checkpoint.
    #[error(transparent)]
    RerunState(#[from] RerunCheckpointError),
    /// Data-parallel replicas have other parameters
    /// (`train.check_weight_hash_across_dp_replicas_interval`).
    #[error("iteration {iteration}: replicas of the model do not have the same parameters; {since}; {found}")]
    ReplicasDiffer {
        /// The last iteration before they were compared.
        iteration: u64,
        /// Ranks with other parameters than most, their hosts and devices, and what differs.
        found: String,
        /// When they were equal.
        since: String,
    },
    /// `train.max_consecutive_skipped_iterations` iterations in a row had gradients or losses that
    /// are not finite.
    #[error(
        "iteration {iteration}: the last {count} iterations taught the model nothing, their gradients or losses were not finite \
         (train.max_consecutive_skipped_iterations); {}",
        match last_good {
            Some(folder) => format!("the last good checkpoint is {}", folder.display()),
            None => "no checkpoint from before them is left".to_owned(),
        }
    )]
    NothingLearned {
        /// The last of them.
        iteration: u64,
        /// Number of iterations.
        count: u64,
        /// The checkpoint saved last before the first of them.
        last_good: Option<PathBuf>,
    },
    /// Section timeouts are asked for, and nobody looks at them.
    #[error(
        "ft.enable_ft_package: nobody watches this run; `bridge train RECIPE --max-restarts N` does (a program names a monitor's socket in \
         `RunOptions.rank_env`)"
    )]
    NoMonitor,
}

room_error! { SubsystemError, wraps Common;
    Self::NoMonitor => ErrorClass::BadInput,
    _ => ErrorClass::Failed,
}
