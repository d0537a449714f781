//! The state that the ranks of one group share, and the one primitive of their collectives: an
//! exchange, in which each rank publishes a payload and gets the payloads of all ranks. No
//! arithmetic and no copying happens here.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::Instant;

use super::mailbox::Mailbox;
use super::world::{POLL, Supervision, World};
use crate::comm::buffer::HostBuffer;
use crate::comm::device::DevicePart;
use crate::comm::error::{CommError, CommErrorKind};
use crate::comm::lock::lock;
use crate::comm::signature::{OpKind, RankContext, Signature};
use crate::comm::worker::GroupMember;

/// Data that a rank publishes in one round.
#[derive(Debug)]
pub(super) struct Payload {
    pub signature: Signature,
    pub body: Body,
}

#[derive(Debug)]
pub(super) enum Body {
    Empty,
    Data(HostBuffer),
    /// Data with the counts of an uneven exchange.
    Uneven {
        data: HostBuffer,
        send_counts: Vec<u64>,
        recv_counts: Vec<u64>,
    },
    /// Device memory for every rank.
    Part(DevicePart),
    /// Device memory for each rank, with the numbers of elements.
    Parts {
        parts: Vec<DevicePart>,
        send_counts: Vec<u64>,
        recv_counts: Vec<u64>,
    },
    /// A request for a new group.
    Split {
        color: Option<usize>,
        key: usize,
    },
    /// A new group, from its first rank.
    Group(Option<Arc<Group>>),
}

/// Blocking and non-blocking collectives run in separate lanes, so that they cannot interleave.
#[derive(Clone, Copy, Debug)]
pub(super) enum LaneKind {
    Blocking,
    Background,
}

#[derive(Debug)]
pub(super) struct Group {
    pub world: Arc<World>,
    pub name: Arc<str>,
    /// World ranks of the members.
    pub members: Arc<[usize]>,
    pub mailboxes: Vec<Mailbox>,
    departed: Vec<AtomicBool>,
    blocking: Lane,
    background: Lane,
}

#[derive(Debug, Default)]
struct Lane {
    rounds: Mutex<Rounds>,
    arrived: Condvar,
}

/// Rounds in progress, oldest first. A rank can be one round ahead of the slowest, so there are at
/// most two.
#[derive(Debug, Default)]
struct Rounds {
    first: u64,
    open: VecDeque<Round>,
}

#[derive(Debug)]
struct Round {
    payloads: Vec<Option<Arc<Payload>>>,
    published: usize,
    taken: usize,
}

impl Group {
    pub fn new(world: Arc<World>, name: &str, members: Vec<usize>) -> Self {
        let size = members.len();
        Self {
            world,
            name: name.into(),
            members: members.into(),
            mailboxes: (0..size).map(|_| Mailbox::default()).collect(),
            departed: (0..size).map(|_| AtomicBool::new(false)).collect(),
            blocking: Lane::default(),
            background: Lane::default(),
        }
    }

    fn lane(&self, kind: LaneKind) -> &Lane {
        match kind {
            LaneKind::Blocking => &self.blocking,
            LaneKind::Background => &self.background,
        }
    }

    pub fn has_departed(&self, rank: usize) -> bool {
        self.departed[rank].load(Ordering::Acquire)
    }

    pub fn last_operation(&self, rank: usize) -> String {
        self.world.last_operation(self.members[rank])
    }
}

/// A rank's membership of a group. When the last owner (communicator, worker, request) drops it,
/// the rank has left.
#[derive(Debug)]
pub(super) struct Member {
    pub group: Arc<Group>,
    pub rank: usize,
}

impl Member {
    /// Records the call as the rank's last operation.
    pub fn record_call(&self, signature: &Signature) {
        self.group.world.note(self.group.members[self.rank], *signature, &self.group.name);
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.group.departed[self.rank].store(true, Ordering::Release);
    }
}

impl GroupMember for Member {
    fn rank_context(&self) -> RankContext<'_> {
        RankContext { rank: self.rank, world_ranks: &self.group.members, group: &self.group.name }
    }

    fn failure(&self) -> Option<Arc<CommError>> {
        self.group.world.failure()
    }

    fn fail(&self, signature: &Signature, kind: CommErrorKind) -> CommError {
        self.fail_with(self.rank_context().error(signature, kind))
    }
}

impl Member {
    /// Fails the world with this error, and returns it.
    pub fn fail_with(&self, error: CommError) -> CommError {
        self.group.world.fail(&error);
        error
    }

    pub fn peer_gone(&self, signature: &Signature, peer: usize) -> CommError {
        let last_operation = self.group.last_operation(peer);
        self.fail(signature, CommErrorKind::PeerGone { peer, last_operation })
    }

    pub fn timed_out(&self, signature: &Signature, missing: impl IntoIterator<Item = usize>) -> CommError {
        let kind = CommErrorKind::Timeout {
            waited: self.group.world.timeout(),
            missing: missing.into_iter().map(|rank| (rank, self.group.last_operation(rank))).collect(),
        };
        self.fail(signature, kind)
    }

    /// If this thread is unwinding, the rank is lost to all others.
    pub fn report_panic(&self) {
        if self.group.world.supervision == Supervision::Communicator && thread::panicking() {
            let error = CommError {
                operation: self.group.last_operation(self.rank),
                ..self.rank_context().error(
                    &Signature::bare(OpKind::Barrier),
                    CommErrorKind::Panicked { message: "see the rank's standard error".to_owned() },
                )
            };
            self.group.world.fail(&error);
        }
    }

    /// Publishes `body` in round `round` of the lane and returns the bodies of all ranks, in rank
    /// order.
    pub fn exchange(
        &self,
        lane: LaneKind,
        round: u64,
        signature: Signature,
        body: Body,
    ) -> Result<Vec<Arc<Payload>>, CommError> {
        self.check_world(&signature)?;
        let size = self.group.members.len();
        let lane = self.group.lane(lane);
        let payload = Arc::new(Payload { signature, body });
        let mut rounds = lock(&lane.rounds);
        let index = (round - rounds.first) as usize;
        if index == rounds.open.len() {
            rounds.open.push_back(Round { payloads: vec![None; size], published: 0, taken: 0 });
        }
        let open = &mut rounds.open[index];
        open.payloads[self.rank] = Some(payload);
        open.published += 1;
        if open.published == size {
            lane.arrived.notify_all();
        }
        let start = Instant::now();
        loop {
            let index = (round - rounds.first) as usize;
            let open = &mut rounds.open[index];
            if open.published == size {
                let all: Vec<Arc<Payload>> = open.payloads.iter().flatten().map(Arc::clone).collect();
                open.taken += 1;
                if open.taken == size {
                    rounds.open.pop_front();
                    rounds.first += 1;
                }
                drop(rounds);
                self.agree(&signature, &all)?;
                return Ok(all);
            }
            let missing: Vec<usize> = (0..size).filter(|&rank| open.payloads[rank].is_none()).collect();
            self.check_world(&signature)?;
            if let Some(&peer) = missing.iter().find(|&&rank| self.group.has_departed(rank)) {
                return Err(self.peer_gone(&signature, peer));
            }
            let timeout = self.group.world.timeout();
            let Some(left) = timeout.checked_sub(start.elapsed()).filter(|left| !left.is_zero()) else {
                return Err(self.timed_out(&signature, missing));
            };
            rounds =
                lane.arrived.wait_timeout(rounds, left.min(POLL)).unwrap_or_else(std::sync::PoisonError::into_inner).0;
        }
    }

    fn agree(&self, signature: &Signature, all: &[Arc<Payload>]) -> Result<(), CommError> {
        if all.iter().all(|payload| payload.signature == *signature) {
            return Ok(());
        }
        let signatures: Vec<Signature> = all.iter().map(|payload| payload.signature).collect();
        self.rank_context().agree(signature, &signatures).map_err(|error| self.fail_with(error))
    }
}
