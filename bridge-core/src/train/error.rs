//! Errors that several rooms (modules of `train`) share, and the classes of errors. The errors of a
//! single room are in the `error.rs` of that room.

use std::path::PathBuf;

use bridge_dist::comm::CommError;

use crate::config::{ConfigError, ConfigErrors};
use crate::logging::{OpenError, SinkError};

/// Errors that several modules of the training loop share.
#[derive(thiserror::Error)]
pub enum CommonError {
    /// The configuration is invalid; all problems are listed.
    #[error(transparent)]
    Config(#[from] ConfigErrors),
    /// An operation between ranks failed.
    #[error("{0}")]
    Communication(#[from] CommError),
    /// Another rank failed, and reported the reason itself.
    #[error("stopped because rank {rank} failed while {doing}; its own message says why")]
    OtherRank {
        /// The first rank that failed.
        rank: usize,
        /// Activity of all ranks.
        doing: String,
        /// True if the user's input is at fault.
        is_bad_input: bool,
        /// The failure of that rank as a communication error.
        source: CommError,
    },
    /// A log cannot be written, is damaged, or cannot have the figures that a setting asks for.
    #[error(transparent)]
    Log(#[from] OpenError),
    /// A field of `train_state.json` cannot be understood.
    #[error("{}: train_state.json: `{field}`: {message}", path.display())]
    BadState {
        /// The checkpoint.
        path: PathBuf,
        /// The field.
        field: String,
        /// Description of the fault.
        message: String,
    },
    /// The process computes with another number of threads than the recipe's.
    #[error("train.num_threads = {expected}: this process already computes with {found} threads")]
    NumThreads {
        /// Value in the recipe.
        expected: usize,
        /// Threads of the pool.
        found: usize,
    },
    /// Threads that compute could not be started.
    #[error("the thread pool could not be started: {0}")]
    ThreadPool(#[from] rayon::ThreadPoolBuildError),
    /// The device failed.
    #[error("the device failed: {0}")]
    Device(String),
    /// A panic ended the run; its message has been printed.
    #[error("{0}")]
    Panicked(String),
    /// A broken invariant of Bridge itself.
    #[error("internal error: {0}")]
    Internal(String),
}

impl From<ConfigError> for CommonError {
    fn from(error: ConfigError) -> Self {
        Self::Config(error.into())
    }
}

impl CommonError {
    /// Error of a log file that cannot be written; `what` names the log.
    pub(in crate::train) fn log(what: impl Into<String>, error: impl Into<SinkError>) -> Self {
        Self::Log(OpenError::Log(what.into(), error.into()))
    }

    /// Error of a setting of logs that cannot be satisfied.
    pub(in crate::train) fn setting(key: &'static str, message: String) -> Self {
        Self::Log(OpenError::Setting { key, message })
    }
}

/// Class of an error: the party at fault, the same for errors of all rooms.
#[derive(Clone, Copy, Debug)]
pub enum ErrorClass<'a> {
    /// The recipe is invalid; all problems are listed.
    Config(&'a ConfigErrors),
    /// Other input of the user.
    BadInput,
    /// An operation between ranks failed.
    Communication(&'a CommError),
    /// Another rank failed; true if the user's input is at fault.
    OtherRank(bool),
    /// The run or the machine failed.
    Failed,
}

/// Errors with a class.
pub trait Classified {
    /// Class of the error.
    fn class(&self) -> ErrorClass<'_>;

    /// True if the user's input is at fault (exit code 2) rather than the run (exit code 1).
    fn is_bad_input(&self) -> bool {
        matches!(self.class(), ErrorClass::Config(_) | ErrorClass::BadInput | ErrorClass::OtherRank(true))
    }
}

/// Implements conversions, [`Classified`] and `Debug` for the error type of a room. Every type that
/// converts to [`CommonError`] converts to the room's error. Variants in the list after `wraps`
/// have the class of the wrapped error; the arms give the class of the other variants.
macro_rules! room_error {
    ($error:ident, wraps $($wrapped:ident),+; $($arms:tt)+) => {
        impl<E: Into<$crate::train::error::CommonError>> From<E> for $error {
            fn from(error: E) -> Self {
                Self::Common(error.into())
            }
        }

        impl $crate::train::error::Classified for $error {
            fn class(&self) -> $crate::train::error::ErrorClass<'_> {
                match self {
                    $(Self::$wrapped(error) => error.class(),)+
                    $($arms)+
                }
            }
        }

        bridge_data::readable_errors!($error);
    };
}
pub(in crate::train) use room_error;

impl Classified for CommonError {
    fn class(&self) -> ErrorClass<'_> {
        match self {
            Self::Config(errors) => ErrorClass::Config(errors),
            Self::Communication(error) => ErrorClass::Communication(error),
            Self::OtherRank { is_bad_input, .. } => ErrorClass::OtherRank(*is_bad_input),
            Self::Log(OpenError::Damaged(..) | OpenError::Setting { .. }) => ErrorClass::BadInput,
            Self::NumThreads { .. } => ErrorClass::BadInput,
            Self::Log(OpenError::Log(..))
            | Self::BadState { .. }
            | Self::ThreadPool(_)
            | Self::Device(_)
            | Self::Panicked(_)
            | Self::Internal(_) => ErrorClass::Failed,
        }
    }
}

bridge_data::readable_errors!(CommonError);
