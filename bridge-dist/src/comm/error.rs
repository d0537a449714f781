//! Errors between ranks: which rank reports it, in which group and operation, what was expected and
//! what was found.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// An error of a collective or point-to-point operation, as one rank saw it.
///
/// After an error that involves other ranks (everything except
/// [`InvalidArgument`](CommErrorKind::InvalidArgument)) the whole world of the communicator has
/// failed: each rank's current or next operation in any group reports
/// [`Aborted`](CommErrorKind::Aborted) with this error as its cause.
///
/// The text names ranks of the world; `number N` is the rank within the group.
#[derive(Clone, Debug)]
pub struct CommError {
    /// The rank, within `group`, that reports the error.
    pub rank: usize,
    /// The group's ranks as ranks of the world.
    pub world_ranks: Arc<[usize]>,
    /// Name of the group.
    pub group: String,
    /// The operation with its arguments, e.g. `all_reduce(sum, 12 x f32)`.
    pub operation: String,
    /// Kind of the failure.
    pub kind: Box<CommErrorKind>,
}

/// Failure of an operation.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum CommErrorKind {
    /// The arguments are invalid on this rank, independently of other ranks. Nothing was sent.
    InvalidArgument {
        /// The argument.
        what: &'static str,
        /// The required value.
        expected: String,
        /// The value found.
        found: String,
    },
    /// Ranks of one group called different operations, or with different element types, lengths,
    /// roots, reductions or counts.
    Mismatch {
        /// The rank, within the group, that differs from the majority.
        peer: usize,
        /// Operation that most ranks called; for point-to-point messages, the receiver's.
        expected: String,
        /// Operation of `peer`.
        found: String,
    },
    /// Other ranks did not arrive in time.
    Timeout {
        /// The time limit that was exceeded.
        waited: Duration,
        /// The ranks, within the group, that are missing, each with its last known operation; empty
        /// if that cannot be known.
        missing: Vec<(usize, String)>,
    },
    /// A rank that this operation needs has dropped its communicator (usually because it returned,
    /// possibly with an error).
    PeerGone {
        /// The rank, within the group, that left.
        peer: usize,
        /// Last known operation of the rank.
        last_operation: String,
    },
    /// This rank panicked.
    Panicked {
        /// The panic message.
        message: String,
    },
    /// This rank's program returned an error of its own.
    ProgramFailed {
        /// Text of that error.
        message: String,
    },
    /// Another operation failed earlier, on this or another rank, and failed the world.
    Aborted {
        /// The first failure of the world.
        cause: Arc<CommError>,
    },
    /// The library that moves the bytes reported an error.
    Transport {
        /// The library.
        library: &'static str,
        /// Text of the error.
        message: String,
    },
}

impl CommError {
    /// Number of ranks in the group.
    pub fn size(&self) -> usize {
        self.world_ranks.len()
    }

    /// The first failure of the world: the cause of an [`Aborted`](CommErrorKind::Aborted) error,
    /// otherwise this error.
    pub fn root_cause(&self) -> &CommError {
        match &*self.kind {
            CommErrorKind::Aborted { cause } => cause.root_cause(),
            _ => self,
        }
    }

    /// The ranks of the world that did not join before the time limit; `None` unless this is a
    /// [`Timeout`](CommErrorKind::Timeout).
    pub fn missing_ranks(&self) -> Option<Vec<usize>> {
        let CommErrorKind::Timeout { missing, .. } = &*self.kind else { return None };
        Some(missing.iter().map(|(rank, _)| self.world_rank(*rank)).collect())
    }

    /// A rank of the group as a rank of the world.
    fn world_rank(&self, rank: usize) -> usize {
        self.world_ranks.get(rank).copied().unwrap_or(rank)
    }

    fn is_numbered_as_world(&self) -> bool {
        self.world_ranks.iter().enumerate().all(|(rank, world_rank)| rank == *world_rank)
    }
}

impl std::error::Error for CommError {}

impl fmt::Display for CommError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rank, group, operation, .. } = self;
        if self.is_numbered_as_world() {
            write!(f, "rank {rank} of group `{group}` (size {}) in {operation}: ", self.size())?;
        } else {
            let (own, ranks) = (self.world_rank(*rank), list(&self.world_ranks));
            write!(f, "rank {own} (number {rank} of group `{group}`: ranks {ranks}) in {operation}: ")?;
        }
        match &*self.kind {
            CommErrorKind::InvalidArgument { what, expected, found } => {
                write!(f, "{what}: expected {expected}, found {found}")
            }
            CommErrorKind::Mismatch { peer, expected, found } => {
                let peer = self.world_rank(*peer);
                write!(f, "rank {peer} disagrees: expected {expected}, found {found}")
            }
            CommErrorKind::Timeout { waited, missing } => {
                let describe = |(rank, last): &(usize, String)| match (self.world_rank(*rank), last.as_str()) {
                    (rank, "") => format!("rank {rank}"),
                    (rank, last) => format!("rank {rank} (last seen in {last})"),
                };
                let missing: Vec<String> = missing.iter().map(describe).collect();
                write!(f, "waited {waited:?} for {}", missing.join(", "))
            }
            CommErrorKind::PeerGone { peer, last_operation } => {
                let peer = self.world_rank(*peer);
                write!(f, "rank {peer} has left the group; its last operation was {last_operation}")
            }
            CommErrorKind::Panicked { message } => write!(f, "the rank panicked: {message}"),
            CommErrorKind::ProgramFailed { message } => write!(f, "the rank's program failed: {message}"),
            CommErrorKind::Aborted { cause } => write!(f, "stopped because of an earlier failure: {cause}"),
            CommErrorKind::Transport { library, message } => write!(f, "{library} reported: {message}"),
        }
    }
}

/// Ranks for messages: all of them if there are few, otherwise the first two and the last.
fn list(ranks: &[usize]) -> String {
    let texts = |ranks: &[usize]| ranks.iter().map(usize::to_string).collect::<Vec<_>>().join(", ");
    match ranks {
        [first, second, .., last] if ranks.len() > 8 => format!("{first}, {second}, ... {last}"),
        few => texts(few),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_those_of_the_world() {
        let error = |world_ranks: Vec<usize>| CommError {
            rank: 1,
            world_ranks: world_ranks.into(),
            group: "pp".into(),
            operation: "barrier()".into(),
            kind: Box::new(CommErrorKind::Timeout {
                waited: Duration::from_secs(5),
                missing: vec![(0, String::new()), (2, "send(to number 1)".into())],
            }),
        };
        assert_eq!(
            error(vec![3, 7, 11]).to_string(),
            "rank 7 (number 1 of group `pp`: ranks 3, 7, 11) in barrier(): waited 5s for rank 3, rank 11 (last seen in send(to number 1))"
        );
        assert_eq!(
            error(vec![0, 1, 2]).to_string(),
            "rank 1 of group `pp` (size 3) in barrier(): waited 5s for rank 0, rank 2 (last seen in send(to number 1))"
        );
        let many = error((0..64).map(|rank| 2 * rank).collect()).to_string();
        assert!(many.starts_with("rank 2 (number 1 of group `pp`: ranks 0, 2, ... 126) in"), "{many}");
    }
}
