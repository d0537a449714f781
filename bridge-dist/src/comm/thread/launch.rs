//! Starts one thread per rank, waits for all of them, and finds the failure that came first.

use std::any::Any;
use std::error::Error;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;
use std::{fmt, thread};

use super::super::single::SingleCommunicator;
use super::super::{CommError, CommErrorKind, Group};
use super::ThreadCommunicator;
use super::group::Member;
use super::world::{Devices, Supervision};
use crate::comm::signature::{OpKind, Signature};
use crate::comm::worker::GroupMember;

/// Any error of a rank's program.
pub type BoxError = Box<dyn Error + Send + Sync>;

/// Why a rank did not return a result.
#[derive(Debug)]
#[non_exhaustive]
pub enum RankFailure {
    /// The rank panicked, with this message.
    Panicked(String),
    /// The rank returned this error.
    Failed(BoxError),
    /// The operating system could not create a thread for the rank.
    NotStarted(std::io::Error),
}

/// The first failure of a launch, and the other ranks that failed because of it or independently.
#[derive(Debug)]
pub struct RankError {
    /// The rank (of the world) that failed first.
    pub rank: usize,
    /// The last known operation of that rank.
    pub operation: String,
    /// Failure of the rank.
    pub failure: RankFailure,
    /// The other ranks that failed, with their messages.
    pub others: Vec<(usize, String)>,
}

impl fmt::Display for RankFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Panicked(message) => write!(f, "panicked: {message}"),
            Self::Failed(error) => write!(f, "failed: {error}"),
            Self::NotStarted(error) => write!(f, "could not be started: {error}"),
        }
    }
}

impl fmt::Display for RankError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rank, operation, failure, others } = self;
        write!(f, "rank {rank} {failure} (last operation: {operation})")?;
        if !others.is_empty() {
            let ranks: Vec<String> = others.iter().map(|(rank, _)| rank.to_string()).collect();
            write!(f, "; ranks that stopped too: {}", ranks.join(", "))?;
        }
        Ok(())
    }
}

impl Error for RankError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match &self.failure {
            RankFailure::Failed(error) => Some(&**error),
            RankFailure::NotStarted(error) => Some(error),
            RankFailure::Panicked(_) => None,
        }
    }
}

/// Runs `program` on `size` ranks, each a thread, and returns their results in rank order.
///
/// A world of one runs on the calling thread with a [`SingleCommunicator`].
///
/// # Errors
/// If any rank panics or returns an error: the failure that came first, preferring a panic or an
/// error of the program's own over the communication errors that follow from it. All ranks have
/// ended when this returns.
///
/// # Panics
/// If `size` is 0.
pub fn run_ranks<T, E>(
    size: usize,
    timeout: Duration,
    program: impl Fn(Group) -> Result<T, E> + Sync,
) -> Result<Vec<T>, RankError>
where
    T: Send,
    E: Into<BoxError>,
{
    run_ranks_on(Devices::Apart, size, timeout, program)
}

/// As [`run_ranks`]; where ranks share a device, they exchange its memory without a copy in host
/// memory ([`Communicator::device`](crate::comm::Communicator::device)).
///
/// # Errors
/// As [`run_ranks`].
///
/// # Panics
/// As [`run_ranks`].
pub fn run_ranks_on<T, E>(
    devices: Devices,
    size: usize,
    timeout: Duration,
    program: impl Fn(Group) -> Result<T, E> + Sync,
) -> Result<Vec<T>, RankError>
where
    T: Send,
    E: Into<BoxError>,
{
    if size == 1 {
        let comm: Group = Arc::new(SingleCommunicator::new("world"));
        return match run_one(|| program(comm)) {
            Ok(value) => Ok(vec![value]),
            Err(failure) => Err(RankError {
                rank: 0,
                operation: "not recorded for a single rank".to_owned(),
                failure,
                others: Vec::new(),
            }),
        };
    }
    let comms: Vec<Arc<ThreadCommunicator>> =
        super::supervised_world(size, timeout, Supervision::Launcher, devices).into_iter().map(Arc::new).collect();
    let members: Vec<Arc<Member>> = comms.iter().map(|comm| Arc::clone(&comm.member)).collect();
    let watch = Arc::clone(&members[0].group);
    let program = &program;
    let outcomes: Vec<Result<T, RankFailure>> = thread::scope(|scope| {
        let handles: Vec<_> = comms
            .into_iter()
            .zip(members)
            .map(|(comm, member)| {
                let keep = Arc::clone(&member);
                let started =
                    thread::Builder::new().name(format!("rank-{}", member.rank)).spawn_scoped(scope, move || {
                        let outcome = run_one(|| program(comm));
                        announce(&member, &outcome);
                        outcome
                    });
                if let Err(error) = &started {
                    let kind = CommErrorKind::ProgramFailed { message: error.to_string() };
                    keep.fail(&Signature::bare(OpKind::Barrier), kind);
                }
                started
            })
            .collect();
        handles
            .into_iter()
            .map(|handle| match handle {
                Ok(handle) => handle.join().unwrap_or_else(|panic| Err(RankFailure::Panicked(panic_message(&*panic)))),
                Err(error) => Err(RankFailure::NotStarted(error)),
            })
            .collect()
    });
    collect(outcomes, &watch)
}

fn run_one<T, E: Into<BoxError>>(program: impl FnOnce() -> Result<T, E>) -> Result<T, RankFailure> {
    // The closure's captures are not used after a panic.
    match catch_unwind(AssertUnwindSafe(program)) {
        Ok(outcome) => outcome.map_err(|error| RankFailure::Failed(error.into())),
        Err(panic) => Err(RankFailure::Panicked(panic_message(&*panic))),
    }
}

/// Message of a panic, from its payload.
pub fn panic_message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "a panic without a message".to_owned())
}

/// Announces the failure of this rank to the ranks that are still running.
fn announce<T>(member: &Member, outcome: &Result<T, RankFailure>) {
    let kind = match outcome {
        Ok(_) => return,
        Err(RankFailure::Panicked(message)) => CommErrorKind::Panicked { message: message.clone() },
        Err(RankFailure::Failed(error)) => CommErrorKind::ProgramFailed { message: error.to_string() },
        Err(RankFailure::NotStarted(error)) => CommErrorKind::ProgramFailed { message: error.to_string() },
    };
    let error = CommError {
        operation: format!("its program, after {}", member.group.last_operation(member.rank)),
        ..member.rank_context().error(&Signature::bare(OpKind::Barrier), kind)
    };
    member.group.world.fail(&error);
}

fn collect<T>(outcomes: Vec<Result<T, RankFailure>>, watch: &super::group::Group) -> Result<Vec<T>, RankError> {
    if outcomes.iter().all(Result::is_ok) {
        return Ok(outcomes.into_iter().flatten().collect());
    }
    let mut failures: Vec<(usize, RankFailure)> = outcomes
        .into_iter()
        .enumerate()
        .filter_map(|(rank, outcome)| outcome.err().map(|failure| (rank, failure)))
        .collect();
    let first = failures
        .iter()
        .enumerate()
        .min_by_key(|(_, (rank, failure))| (blame(failure), *rank))
        .map_or(0, |(index, _)| index);
    let (rank, failure) = failures.remove(first);
    Err(RankError {
        rank,
        operation: watch.last_operation(rank),
        failure,
        others: failures.into_iter().map(|(rank, failure)| (rank, failure.to_string())).collect(),
    })
}

/// Lower is more likely the cause: own failures, then communication errors, then those that only
/// pass on another rank's failure.
fn blame(failure: &RankFailure) -> u8 {
    let RankFailure::Failed(error) = failure else { return 0 };
    let mut link: Option<&(dyn Error + 'static)> = Some(&**error);
    while let Some(error) = link {
        if let Some(error) = error.downcast_ref::<CommError>() {
            return match &*error.kind {
                CommErrorKind::InvalidArgument { .. } => 0,
                CommErrorKind::Aborted { .. } => 3,
                CommErrorKind::PeerGone { .. } => 2,
                _ => 1,
            };
        }
        link = error.source();
    }
    0
}
