//! Errors that several rooms make, and the classes of errors. A room's own errors are in its
//! `error.rs`.

use std::path::PathBuf;

use bridge_dist::comm::CommError;

use crate::config::{ConfigError, ConfigErrors};
use crate::logging::{OpenError, SinkError};

/// Errors that several rooms of the loop make.
#[derive(thiserror::Error)]
pub enum CommonError {
    /// The configuration, with all its problems.
    #[error(transparent)]
    Config(#[from] ConfigErrors),
    /// An operation between ranks.
    #[error("{0}")]
    Communication(#[from] CommError),
    /// Another rank could not go on, and said why.
    #[error("stopped because rank {rank} failed while {doing}; its own message says why")]
    OtherRank {
        /// The first rank that failed.
        rank: usize,
        /// Activity of all ranks.
        doing: String,
        /// True if the input is at fault.
        is_bad_input: bool,
        /// The same as a communication error.
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
    /// The device failed.
    #[error("the device failed: {0}")]
    Device(String),
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
    /// A log file that cannot be written.
    pub(in crate::train) fn log(what: impl Into<String>, error: impl Into<SinkError>) -> Self {
        Self::Log(OpenError::Log { what: what.into(), source: error.into() })
    }

    /// A setting of a log that cannot be followed.
    pub(in crate::train) fn setting(key: &'static str, message: String) -> Self {
        Self::Log(OpenError::Setting { key, message })
    }
}

/// Class of an error: who is at fault, whatever the room.
#[derive(Clone, Copy, Debug)]
pub enum ErrorClass<'a> {
    /// The recipe, with all its problems.
    Config(&'a ConfigErrors),
    /// Other input of the user.
    BadInput,
    /// An operation between ranks.
    Communication(&'a CommError),
    /// Another rank; true if the input is at fault.
    OtherRank(bool),
    /// The run, or the machine.
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

/// Implements conversions, class and `Debug` of a room's error. What converts to [`CommonError`]
/// converts to it; its class is that of the room's error that it wraps, or else that of an arm.
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
            Self::Log(OpenError::Damaged { .. } | OpenError::Setting { .. }) => ErrorClass::BadInput,
            Self::Log(OpenError::Log { .. }) | Self::BadState { .. } | Self::Device(_) | Self::Internal(_) => {
                ErrorClass::Failed
            }
        }
    }
}

bridge_data::readable_errors!(CommonError);
