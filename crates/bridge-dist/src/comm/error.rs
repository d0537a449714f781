//! What goes wrong between ranks, as values: who saw it, in which group and operation, what was expected and found.

use std::sync::Arc;
use std::time::Duration;

/// An error of a collective or point-to-point operation, as one rank saw it.
///
/// After an error that involves other ranks (everything except
/// [`InvalidArgument`](CommErrorKind::InvalidArgument)) the whole world of the communicator is failed: each rank's
/// current or next operation in any group reports [`Aborted`](CommErrorKind::Aborted) with this error as its cause.
#[derive(Clone, Debug, thiserror::Error)]
#[error("rank {rank} of group `{group}` (size {size}) in {operation}: {kind}")]
pub struct CommError {
    /// The rank, within `group`, that reports the error.
    pub rank: usize,
    /// Number of ranks in the group.
    pub size: usize,
    /// Name of the group.
    pub group: String,
    /// The operation with its arguments, e.g. `all_reduce(sum, 12 x f32)`.
    pub operation: String,
    /// What happened.
    #[source]
    pub kind: Box<CommErrorKind>,
}

/// What happened to an operation.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CommErrorKind {
    /// The arguments cannot be right on this rank, whatever the other ranks do. Nothing was sent.
    #[error("{what}: expected {expected}, found {found}")]
    InvalidArgument {
        /// The argument.
        what: &'static str,
        /// What it has to be.
        expected: String,
        /// What it is.
        found: String,
    },
    /// Ranks of one group are not doing the same thing (operation, element type, length, root, reduction, counts).
    #[error("rank {peer} does something else: expected {expected}, found {found}")]
    Mismatch {
        /// The rank, within the group, that differs from the majority.
        peer: usize,
        /// What the majority (for a message: the receiver) does.
        expected: String,
        /// What `peer` does.
        found: String,
    },
    /// Other ranks did not arrive in time.
    #[error("waited {waited:?} for {}", describe_missing(missing))]
    Timeout {
        /// The time limit that passed.
        waited: Duration,
        /// The ranks, within the group, that are missing, each with what it was last seen doing; empty where that cannot be known.
        missing: Vec<(usize, String)>,
    },
    /// A rank that is needed here has dropped its communicator (usually it returned, or returned an error).
    #[error("rank {peer} has left the group; its last operation was {last_operation}")]
    PeerGone {
        /// The rank, within the group, that left.
        peer: usize,
        /// What it was last seen doing.
        last_operation: String,
    },
    /// This rank panicked.
    #[error("the rank panicked: {message}")]
    Panicked {
        /// The panic message.
        message: String,
    },
    /// This rank's program returned an error of its own.
    #[error("the rank's program failed: {message}")]
    ProgramFailed {
        /// That error as text.
        message: String,
    },
    /// Another operation failed earlier, on this or another rank, and took the world down.
    #[error("stopped because of an earlier failure: {cause}")]
    Aborted {
        /// The first failure of the world.
        cause: Arc<CommError>,
    },
    /// The library that moves the bytes reported an error.
    #[error("{library} reported: {message}")]
    Transport {
        /// The library.
        library: &'static str,
        /// Its message.
        message: String,
    },
}

impl CommError {
    /// The first failure of the world: the cause of an [`Aborted`](CommErrorKind::Aborted) error, otherwise this error.
    pub fn root_cause(&self) -> &CommError {
        match &*self.kind {
            CommErrorKind::Aborted { cause } => cause.root_cause(),
            _ => self,
        }
    }
}

fn describe_missing(missing: &[(usize, String)]) -> String {
    let describe = |(rank, last): &(usize, String)| match last.as_str() {
        "" => format!("rank {rank}"),
        last => format!("rank {rank} (last seen in {last})"),
    };
    missing.iter().map(describe).collect::<Vec<_>>().join(", ")
}
