//! State that the lanes and messages of a process share: the environment with its time limit and
//! first failure, owned communicators, and a rank's place in a group. Transfers do not belong here.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::raw::{Environment, Kind, RawComm, RawError, Transfer};
use crate::comm::buffer::HostBuffer;
use crate::comm::error::{CommError, CommErrorKind};
use crate::comm::lock::lock;
use crate::comm::pace::Pace;
use crate::comm::signature::{RankContext, Signature};
use crate::comm::time_limit::TimeLimit;
use crate::comm::worker::GroupMember;

/// State that all communicators of a process share.
#[derive(Debug)]
pub(super) struct World {
    time_limit: TimeLimit,
    environment: Environment,
    failure: Mutex<Option<Arc<CommError>>>,
    /// Operations that threads of this process wait for, in the order in which they began to wait.
    waiting: Mutex<Vec<Arc<Waiting>>>,
    /// Messages whose requests were dropped before they were complete.
    orphans: Mutex<Vec<Orphan>>,
}

/// An operation in which a rank waits for others.
#[derive(Clone, Debug)]
pub struct Waiting {
    /// Name of the group.
    pub group: Arc<str>,
    /// The operation with its arguments.
    pub operation: String,
    /// When it started to wait.
    pub since: Instant,
}

/// A record that this rank is waiting, made after it has waited for a moment, and removed when this
/// is dropped.
#[derive(Debug)]
pub(super) struct Note {
    comm: Arc<Comm>,
    since: Instant,
    entry: Option<Arc<Waiting>>,
}

/// Shorter waits are not recorded.
const NOTED_AFTER: Duration = Duration::from_millis(20);

impl Note {
    /// Called while the rank waits in `signature` of the group `name`.
    pub fn still_waiting(&mut self, name: &Arc<str>, signature: &Signature) {
        if self.entry.is_none() && self.since.elapsed() >= NOTED_AFTER {
            let waiting = Waiting { group: Arc::clone(name), operation: signature.to_string(), since: self.since };
            let entry = Arc::new(waiting);
            lock(&self.comm.world.waiting).push(Arc::clone(&entry));
            self.entry = Some(entry);
        }
    }
}

impl Drop for Note {
    fn drop(&mut self) {
        if let Some(own) = &self.entry {
            lock(&self.comm.world.waiting).retain(|entry| !Arc::ptr_eq(entry, own));
        }
    }
}

struct Orphan(Transfer);

impl std::fmt::Debug for Orphan {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Orphan")
    }
}

impl World {
    pub fn new(environment: Environment, timeout: Duration) -> Self {
        let (failure, waiting, orphans) = (Mutex::new(None), Mutex::new(Vec::new()), Mutex::new(Vec::new()));
        Self { time_limit: TimeLimit::new(timeout), environment, failure, waiting, orphans }
    }

    /// Time limit of operations that wait for other ranks.
    pub fn timeout(&self) -> Duration {
        self.time_limit.get()
    }

    pub fn set_timeout(&self, timeout: Duration) {
        self.time_limit.set(timeout);
    }

    /// Operations that threads of this process wait for.
    pub fn waiting(&self) -> Vec<Waiting> {
        lock(&self.waiting).iter().map(|entry| (**entry).clone()).collect()
    }

    pub fn failure(&self) -> Option<Arc<CommError>> {
        lock(&self.failure).clone()
    }

    pub fn fail(&self, error: CommError) -> CommError {
        lock(&self.failure).get_or_insert_with(|| Arc::new(error.clone()));
        error
    }

    /// Keeps a transfer until the library is done with it.
    pub fn adopt(&self, transfer: Transfer) {
        let mut orphans = lock(&self.orphans);
        // A failed transfer has ended too.
        orphans.retain_mut(|orphan| matches!(orphan.0.poll(), Ok(false)));
        orphans.push(Orphan(transfer));
    }
}

impl Drop for World {
    fn drop(&mut self) {
        // After a failure other ranks may never finalize, which is collective. `mpirun` ends the
        // job when this process exits.
        if self.failure().is_some() {
            return;
        }
        let deadline = Instant::now() + self.timeout();
        let mut pace = Pace::default();
        for orphan in lock(&self.orphans).iter_mut() {
            while matches!(orphan.0.poll(), Ok(false)) && Instant::now() < deadline {
                pace.pause();
            }
        }
        self.environment.finish();
    }
}

/// An MPI communicator that is freed with its last user, before the environment ends.
#[derive(Debug)]
pub(super) struct Comm {
    raw: RawComm,
    pub world: Arc<World>,
}

impl Comm {
    pub fn new(raw: RawComm, world: Arc<World>) -> Self {
        Self { raw, world }
    }
}

impl Drop for Comm {
    fn drop(&mut self) {
        if self.world.failure().is_none() {
            self.raw.free();
        }
    }
}

/// A rank of a group, as used by both lanes and by messages.
#[derive(Clone, Debug)]
pub(super) struct Member {
    pub comm: Arc<Comm>,
    pub rank: usize,
    pub world_ranks: Arc<[usize]>,
    pub name: Arc<str>,
}

impl GroupMember for Member {
    fn rank_context(&self) -> RankContext<'_> {
        RankContext { rank: self.rank, world_ranks: &self.world_ranks, group: &self.name }
    }

    fn failure(&self) -> Option<Arc<CommError>> {
        self.world().failure()
    }

    fn fail(&self, signature: &Signature, kind: CommErrorKind) -> CommError {
        self.world().fail(self.rank_context().error(signature, kind))
    }
}

impl Member {
    pub fn world(&self) -> &World {
        &self.comm.world
    }

    pub fn raw(&self) -> &RawComm {
        &self.comm.raw
    }

    pub fn size(&self) -> usize {
        self.world_ranks.len()
    }

    /// This rank in the world.
    pub fn world_rank(&self) -> usize {
        self.world_ranks[self.rank]
    }

    pub fn library(&self, signature: &Signature, error: RawError) -> CommError {
        let kind = CommErrorKind::Transport { library: "MPI", message: error.0 };
        self.fail(signature, kind)
    }

    pub fn timed_out(&self, signature: &Signature, missing: impl IntoIterator<Item = usize>) -> CommError {
        let kind = CommErrorKind::Timeout {
            waited: self.world().timeout(),
            // The operations of other processes are not known here.
            missing: missing.into_iter().map(|rank| (rank, String::new())).collect(),
        };
        self.fail(signature, kind)
    }

    /// Held for the duration of one operation.
    pub fn note(&self) -> Note {
        Note { comm: Arc::clone(&self.comm), since: Instant::now(), entry: None }
    }

    pub fn start(
        &self,
        signature: &Signature,
        kind: Kind,
        input: HostBuffer,
        output: HostBuffer,
    ) -> Result<Transfer, CommError> {
        Transfer::start(self.raw(), kind, input, output).map_err(|error| self.library(signature, error))
    }

    pub fn poll(&self, signature: &Signature, transfer: &mut Transfer) -> Result<bool, CommError> {
        transfer.poll().map_err(|error| self.library(signature, error))
    }

    /// Polls a transfer until it is complete; `Ok(false)` at the deadline.
    pub fn finish(&self, signature: &Signature, transfer: &mut Transfer, deadline: Instant) -> Result<bool, CommError> {
        let mut pace = Pace::default();
        let mut note = self.note();
        while !self.poll(signature, transfer)? {
            if Instant::now() >= deadline {
                return Ok(false);
            }
            note.still_waiting(&self.name, signature);
            pace.pause();
        }
        Ok(true)
    }
}
