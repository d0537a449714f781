//! Why a world could not be joined with NCCL. Errors of operations are [`CommError`]s like everywhere else.

use crate::comm::error::CommError;

/// NCCL could not be started. Every rank of the bootstrap group gets an error when one rank has one.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NcclInitError {
    /// A shared library is not there.
    #[error("{library} cannot be loaded; {advice}")]
    MissingLibrary {
        /// The library.
        library: &'static str,
        /// What to install.
        advice: &'static str,
    },
    /// The library lacks a function that is used here.
    #[error("the NCCL library has no function `{function}`; install NCCL {needed} or newer")]
    MissingFunction {
        /// Its name.
        function: &'static str,
        /// The oldest version that will do.
        needed: &'static str,
    },
    /// The library is too old.
    #[error("NCCL {found} is installed; install NCCL {needed} or newer")]
    TooOld {
        /// The version that was loaded.
        found: String,
        /// The oldest version that will do.
        needed: &'static str,
    },
    /// There is no such device.
    #[error("CUDA device {ordinal} was asked for, and the driver shows {count} (CUDA_VISIBLE_DEVICES hides devices)")]
    NoDevice {
        /// The device asked for, counted from 0.
        ordinal: usize,
        /// How many there are.
        count: usize,
    },
    /// A library reported an error.
    #[error("{library} reported: {message}")]
    Library {
        /// The library.
        library: &'static str,
        /// Its message.
        message: String,
    },
    /// Another rank could not start NCCL.
    #[error("rank {rank} could not start NCCL: {message}")]
    Peer {
        /// The rank, within the bootstrap group.
        rank: usize,
        /// Its error.
        message: String,
    },
    /// The ranks could not be brought together.
    #[error(transparent)]
    Comm(#[from] CommError),
}
