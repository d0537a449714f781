//! Why NCCL could not be started. Errors of operations are [`CommError`]s, as everywhere else.

use bridge_dist::comm::CommError;

/// NCCL could not be started. Every rank of the bootstrap group gets an error when one rank has
/// one.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NcclInitError {
    /// A shared library is missing.
    #[error("{library} cannot be loaded; {advice}")]
    MissingLibrary {
        /// The library.
        library: &'static str,
        /// Package to install.
        advice: &'static str,
    },
    /// The library lacks a required function.
    #[error("the NCCL library has no function `{function}`; install NCCL {needed} or newer")]
    MissingFunction {
        /// Name of the function.
        function: &'static str,
        /// The oldest supported version.
        needed: &'static str,
    },
    /// The library is too old.
    #[error("NCCL {found} is installed; install NCCL {needed} or newer")]
    TooOld {
        /// The version that was loaded.
        found: String,
        /// The oldest supported version.
        needed: &'static str,
    },
    /// There is no such device.
    #[error("CUDA device {ordinal} was requested, but the driver shows {count} (CUDA_VISIBLE_DEVICES hides devices)")]
    NoDevice {
        /// The requested device, counted from 0.
        ordinal: usize,
        /// The number of devices.
        count: usize,
    },
    /// A library reported an error.
    #[error("{library} reported: {message}")]
    Library {
        /// The library.
        library: &'static str,
        /// Text of the error.
        message: String,
    },
    /// Another rank could not start NCCL.
    #[error("rank {rank} could not start NCCL: {message}")]
    Peer {
        /// The rank, within the bootstrap group.
        rank: usize,
        /// Text of the peer's error.
        message: String,
    },
    /// The bootstrap group failed.
    #[error(transparent)]
    Comm(#[from] CommError),
}
