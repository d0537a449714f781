//! Ranks as threads of one process: for laptops, tests, and one process that drives several
//! devices.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::buffer::{Buffer, BufferMut, DType, HostBuffer, ReduceOp};
use super::device::DeviceExchange;
use super::error::CommError;
use super::lock::lock;
use super::request::Request;
use super::signature::{OpKind, Signature, UnevenExchange};
use super::single::SingleCommunicator;
use super::worker::{Background, Collectives, GroupMember, delegate_to_lanes};
use super::{Communicator, Group};

mod collectives;
mod device;
mod group;
mod launch;
mod mailbox;
mod world;

use collectives::Endpoint;
use group::{LaneKind, Member};
use mailbox::{Message, Receive};
use world::{Supervision, World};

pub use launch::{BoxError, RankError, RankFailure, panic_message, run_ranks, run_ranks_on};
pub use world::Devices;

/// One rank of a group of threads.
///
/// Dropping it means that the rank has left: ranks that still need it get
/// [`PeerGone`](super::CommErrorKind::PeerGone) at once. Dropping it while the thread panics fails
/// the world.
pub struct ThreadCommunicator {
    member: Arc<Member>,
    blocking: Mutex<Endpoint>,
    background: Background<Endpoint>,
}

/// The communicators of a world of `size` ranks; move each to its own thread.
///
/// Most programs call [`run_ranks`] instead.
///
/// # Panics
/// If `size` is 0.
pub fn world(size: usize, timeout: Duration) -> Vec<ThreadCommunicator> {
    supervised_world(size, timeout, Supervision::Communicator, Devices::Apart)
}

fn supervised_world(
    size: usize,
    timeout: Duration,
    supervision: Supervision,
    devices: Devices,
) -> Vec<ThreadCommunicator> {
    assert!(size > 0, "a world has at least one rank");
    let world = Arc::new(World::new(size, timeout, supervision, devices));
    let group = Arc::new(group::Group::new(world, "world", (0..size).collect()));
    (0..size).map(|rank| ThreadCommunicator::new(Arc::clone(&group), rank)).collect()
}

impl ThreadCommunicator {
    fn new(group: Arc<group::Group>, rank: usize) -> Self {
        let member = Arc::new(Member { group, rank });
        Self {
            blocking: Mutex::new(Endpoint::new(Arc::clone(&member), LaneKind::Blocking)),
            background: Background::new(Endpoint::new(Arc::clone(&member), LaneKind::Background)),
            member,
        }
    }

    fn post_host(&self, data: HostBuffer, to: usize, tag: u32) -> Result<(), CommError> {
        let signature = self.member.rank_context().message(OpKind::Send, (data.dtype(), data.len()), to, tag)?;
        self.post(signature, Message::Host(data), to, tag)
    }

    fn post(&self, signature: Signature, message: Message, to: usize, tag: u32) -> Result<(), CommError> {
        self.member.record_call(&signature);
        self.member.check_world(&signature)?;
        if self.member.group.has_departed(to) {
            return Err(self.member.peer_gone(&signature, to));
        }
        self.member.group.mailboxes[to].put(self.member.rank, tag, message);
        Ok(())
    }

    fn receive(&self, what: (DType, usize), from: usize, tag: u32) -> Result<Receive, CommError> {
        let signature = self.member.rank_context().message(OpKind::Recv, what, from, tag)?;
        self.member.record_call(&signature);
        Ok(Receive::start(Arc::clone(&self.member), signature, from, tag))
    }
}

impl Drop for ThreadCommunicator {
    fn drop(&mut self) {
        self.member.report_panic();
    }
}

impl std::fmt::Debug for ThreadCommunicator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ThreadCommunicator({} {}/{})", self.name(), self.rank(), self.size())
    }
}

impl Communicator for ThreadCommunicator {
    delegate_to_lanes!(member: Member);

    fn timeout(&self) -> Duration {
        self.member.group.world.timeout()
    }

    fn set_timeout(&self, timeout: Duration) {
        self.member.group.world.set_timeout(timeout);
    }

    fn send(&self, data: Buffer<'_>, to: usize, tag: u32) -> Result<(), CommError> {
        self.post_host(data.into(), to, tag)
    }

    fn recv(&self, mut data: BufferMut<'_>, from: usize, tag: u32) -> Result<(), CommError> {
        let message = self.receive((data.dtype(), data.len()), from, tag)?.finish_host()?;
        data.copy_from(message.view());
        Ok(())
    }

    fn split(&self, color: Option<usize>, key: usize, name: &str) -> Result<Option<Group>, CommError> {
        let parent = &self.member.group;
        let made = lock(&self.blocking).split(color, key, |ranks| {
            let members = ranks.iter().map(|&rank| parent.members[rank]).collect();
            group::Group::new(Arc::clone(&parent.world), name, members)
        })?;
        Ok(made.map(|(rank, group)| match group.members.len() {
            1 => Arc::new(SingleCommunicator::from_world_rank(name, group.members[0])) as Group,
            _ => Arc::new(Self::new(group, rank)),
        }))
    }

    fn start_send(&self, data: HostBuffer, to: usize, tag: u32) -> Result<Request, CommError> {
        self.post_host(data.clone(), to, tag)?;
        Ok(Request::ready(data))
    }

    fn start_recv(&self, dtype: DType, len: usize, from: usize, tag: u32) -> Result<Request, CommError> {
        let receive = self.receive((dtype, len), from, tag)?;
        Ok(Request::new(receive))
    }

    fn device(&self) -> Option<&dyn DeviceExchange> {
        (self.member.group.world.devices == Devices::Shared).then_some(self)
    }
}
