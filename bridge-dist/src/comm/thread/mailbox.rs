//! Messages on their way to one rank of a group. A receive takes a ticket when it starts and gets
//! the message with that number, so that order does not depend on which receive is waited for
//! first.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Instant;

use super::group::Member;
use super::world::POLL;
use crate::comm::buffer::{DType, HostBuffer};
use crate::comm::device::DevicePart;
use crate::comm::error::{CommError, CommErrorKind};
use crate::comm::lock::lock;
use crate::comm::request::Pending;
use crate::comm::signature::Signature;
use crate::comm::worker::GroupMember;

/// The sending rank and the tag.
type Address = (usize, u32);

/// Message from one rank to another.
#[derive(Debug)]
pub(super) enum Message {
    /// A copy of host memory.
    Host(HostBuffer),
    /// Device memory, shared without a copy.
    Device(DevicePart),
}

impl Message {
    /// Element type, number of elements, and whether they are on a device.
    fn extent(&self) -> (DType, usize, bool) {
        match self {
            Self::Host(data) => (data.dtype(), data.len(), false),
            Self::Device(part) => (part.dtype, part.len, true),
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct Mailbox {
    queues: Mutex<HashMap<Address, Queue>>,
    arrived: Condvar,
}

#[derive(Debug, Default)]
struct Queue {
    next_ticket: u64,
    next_message: u64,
    messages: BTreeMap<u64, Message>,
    /// Tickets of receives that were dropped before their message came.
    cancelled: Vec<u64>,
}

impl Mailbox {
    pub fn put(&self, from: usize, tag: u32, message: Message) {
        let mut queues = lock(&self.queues);
        let queue = queues.entry((from, tag)).or_default();
        let number = queue.next_message;
        queue.next_message += 1;
        if let Some(index) = queue.cancelled.iter().position(|&ticket| ticket == number) {
            queue.cancelled.swap_remove(index);
        } else {
            queue.messages.insert(number, message);
            self.arrived.notify_all();
        }
    }

    fn ticket(&self, address: Address) -> u64 {
        let mut queues = lock(&self.queues);
        let queue = queues.entry(address).or_default();
        queue.next_ticket += 1;
        queue.next_ticket - 1
    }
}

/// A receive that has started.
pub(super) struct Receive {
    member: Arc<Member>,
    signature: Signature,
    address: Address,
    ticket: u64,
    taken: bool,
}

impl Receive {
    /// `signature` is that of the receive, with its length, type, peer and tag.
    pub fn start(member: Arc<Member>, signature: Signature, from: usize, tag: u32) -> Self {
        let address = (from, tag);
        let ticket = member.group.mailboxes[member.rank].ticket(address);
        Self { member, signature, address, ticket, taken: false }
    }

    fn mailbox(&self) -> &Mailbox {
        &self.member.group.mailboxes[self.member.rank]
    }

    /// The message if it has arrived.
    fn take(&mut self, queues: &mut HashMap<Address, Queue>) -> Option<Message> {
        let message = queues.get_mut(&self.address)?.messages.remove(&self.ticket)?;
        self.taken = true;
        Some(message)
    }

    fn check_sender(&self) -> Result<(), CommError> {
        self.member.check_world(&self.signature)?;
        if self.member.group.has_departed(self.address.0) {
            return Err(self.member.peer_gone(&self.signature, self.address.0));
        }
        Ok(())
    }

    /// Blocks until the message has arrived.
    pub fn finish(mut self) -> Result<Message, CommError> {
        let start = Instant::now();
        let member = Arc::clone(&self.member);
        let mailbox = &member.group.mailboxes[member.rank];
        let mut queues = lock(&mailbox.queues);
        loop {
            if let Some(message) = self.take(&mut queues) {
                drop(queues);
                return self.checked(message);
            }
            // Under the same lock as the search for the message: a sender that has left cannot have
            // sent in between.
            if let Err(error) = self.check_sender() {
                drop(queues);
                return Err(error);
            }
            let timeout = member.group.world.timeout();
            let Some(left) = timeout.checked_sub(start.elapsed()).filter(|left| !left.is_zero()) else {
                drop(queues);
                return Err(member.timed_out(&self.signature, [self.address.0]));
            };
            queues = mailbox.arrived.wait_timeout(queues, left.min(POLL)).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// As [`finish`](Self::finish), of a receive of host memory.
    pub fn finish_host(self) -> Result<HostBuffer, CommError> {
        match self.finish()? {
            Message::Host(data) => Ok(data),
            Message::Device(part) => unreachable!("a receive of host memory got {} elements of a device", part.len),
        }
    }

    fn checked(&self, message: Message) -> Result<Message, CommError> {
        let (dtype, len, on_device) = message.extent();
        let expected = (self.signature.dtype, self.signature.len, self.signature.on_device);
        if expected == (Some(dtype), Some(len as u64), on_device) {
            return Ok(message);
        }
        let place = if on_device { " on the device" } else { "" };
        let kind = CommErrorKind::Mismatch {
            peer: self.address.0,
            expected: self.signature.to_string(),
            found: format!("a message of {len} x {dtype}{place}"),
        };
        Err(self.member.fail(&self.signature, kind))
    }
}

impl Drop for Receive {
    fn drop(&mut self) {
        if self.taken {
            return;
        }
        let mut queues = lock(&self.mailbox().queues);
        if let Some(queue) = queues.get_mut(&self.address)
            && queue.messages.remove(&self.ticket).is_none()
        {
            queue.cancelled.push(self.ticket);
        }
    }
}

impl Pending for Receive {
    fn test(&mut self) -> Result<bool, CommError> {
        let queues = lock(&self.mailbox().queues);
        if queues.get(&self.address).is_some_and(|queue| queue.messages.contains_key(&self.ticket)) {
            return Ok(true);
        }
        self.check_sender().map(|()| false)
    }

    fn wait(self: Box<Self>) -> Result<HostBuffer, CommError> {
        self.finish_host()
    }
}
