//! A communicator that counts operations, elements and bytes, by group and operation, and forwards them to another one.
//!
//! # What is counted
//! The *payload*: what this rank hands to the communicator, counted once, whatever algorithm the communicator uses.
//!
//! | operation | elements |
//! | --- | --- |
//! | `all_reduce` | its buffer |
//! | `reduce_scatter`, `all_gather`, `all_to_all`, `all_to_all_uneven` | its input |
//! | `broadcast` | its buffer on the root, nothing elsewhere |
//! | `send` | the message |
//! | `recv` | the message, as an operation of its own |
//! | `barrier` | nothing |
//!
//! Non-blocking forms count like their blocking ones, when they are started. Operations that fail, operations of groups of one rank, and
//! the creation of groups do not count.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::{Buffer, BufferMut, CommError, Communicator, DType, Group, HostBuffer, ReduceOp, Request, UnevenExchange};

/// An operation of a communicator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Operation {
    /// `all_reduce`.
    AllReduce,
    /// `reduce_scatter`.
    ReduceScatter,
    /// `all_gather`.
    AllGather,
    /// `broadcast`.
    Broadcast,
    /// `all_to_all` and `all_to_all_uneven`.
    AllToAll,
    /// `send`.
    Send,
    /// `recv`.
    Recv,
    /// `barrier`.
    Barrier,
}

impl Operation {
    /// The method's name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::AllReduce => "all_reduce",
            Self::ReduceScatter => "reduce_scatter",
            Self::AllGather => "all_gather",
            Self::Broadcast => "broadcast",
            Self::AllToAll => "all_to_all",
            Self::Send => "send",
            Self::Recv => "recv",
            Self::Barrier => "barrier",
        }
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Counts of one rank for one operation of one group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// Calls.
    pub operations: u64,
    /// Elements of payload.
    pub elements: u64,
    /// Bytes of payload.
    pub bytes: u64,
}

/// Counts of one rank, by group name and operation.
pub type Counts = BTreeMap<(String, Operation), Count>;

/// The running totals of one rank. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct Ledger {
    counts: Arc<Mutex<Counts>>,
}

impl Ledger {
    /// The totals so far.
    pub fn counts(&self) -> Counts {
        self.lock().clone()
    }

    /// The totals so far; resets them to zero.
    pub fn take(&self) -> Counts {
        std::mem::take(&mut *self.lock())
    }

    fn add(&self, group: &str, operation: Operation, dtype: DType, elements: usize) {
        let mut counts = self.lock();
        let count = counts.entry((group.to_owned(), operation)).or_default();
        count.operations += 1;
        count.elements += elements as u64;
        count.bytes += (elements * dtype.size()) as u64;
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Counts> {
        // Totals are consistent after every addition, so a panic elsewhere leaves nothing half-done here.
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Counts the operations of a rank on a group, and on all groups split from it.
#[derive(Clone, Debug)]
pub struct CountingCommunicator {
    inner: Group,
    ledger: Ledger,
}

impl CountingCommunicator {
    /// Wraps a group. Its operations and those of its sub-groups are added to `ledger`.
    pub fn new(inner: Group, ledger: Ledger) -> Self {
        Self { inner, ledger }
    }

    /// Counts an operation if it succeeded, and passes its result on.
    fn counted<T>(
        &self,
        result: Result<T, CommError>,
        operation: Operation,
        (dtype, elements): (DType, usize),
    ) -> Result<T, CommError> {
        if result.is_ok() && self.inner.size() > 1 {
            self.ledger.add(self.inner.name(), operation, dtype, elements);
        }
        result
    }
}

impl Communicator for CountingCommunicator {
    fn rank(&self) -> usize {
        self.inner.rank()
    }

    fn size(&self) -> usize {
        self.inner.size()
    }

    fn name(&self) -> &str {
        self.inner.name()
    }

    fn world_ranks(&self) -> Arc<[usize]> {
        self.inner.world_ranks()
    }

    fn timeout(&self) -> Duration {
        self.inner.timeout()
    }

    fn set_timeout(&self, timeout: Duration) {
        self.inner.set_timeout(timeout);
    }

    fn all_reduce(&self, data: BufferMut<'_>, op: ReduceOp) -> Result<(), CommError> {
        let payload = (data.dtype(), data.len());
        self.counted(self.inner.all_reduce(data, op), Operation::AllReduce, payload)
    }

    fn reduce_scatter(&self, input: Buffer<'_>, output: BufferMut<'_>, op: ReduceOp) -> Result<(), CommError> {
        let payload = (input.dtype(), input.len());
        self.counted(self.inner.reduce_scatter(input, output, op), Operation::ReduceScatter, payload)
    }

    fn all_gather(&self, input: Buffer<'_>, output: BufferMut<'_>) -> Result<(), CommError> {
        let payload = (input.dtype(), input.len());
        self.counted(self.inner.all_gather(input, output), Operation::AllGather, payload)
    }

    fn broadcast(&self, data: BufferMut<'_>, root: usize) -> Result<(), CommError> {
        let payload = (data.dtype(), if root == self.rank() { data.len() } else { 0 });
        self.counted(self.inner.broadcast(data, root), Operation::Broadcast, payload)
    }

    fn all_to_all(&self, input: Buffer<'_>, output: BufferMut<'_>) -> Result<(), CommError> {
        let payload = (input.dtype(), input.len());
        self.counted(self.inner.all_to_all(input, output), Operation::AllToAll, payload)
    }

    fn all_to_all_uneven(&self, exchange: UnevenExchange<'_>) -> Result<(), CommError> {
        let payload = (exchange.input.dtype(), exchange.input.len());
        self.counted(self.inner.all_to_all_uneven(exchange), Operation::AllToAll, payload)
    }

    fn send(&self, data: Buffer<'_>, to: usize, tag: u32) -> Result<(), CommError> {
        let payload = (data.dtype(), data.len());
        self.counted(self.inner.send(data, to, tag), Operation::Send, payload)
    }

    fn recv(&self, data: BufferMut<'_>, from: usize, tag: u32) -> Result<(), CommError> {
        let payload = (data.dtype(), data.len());
        self.counted(self.inner.recv(data, from, tag), Operation::Recv, payload)
    }

    fn barrier(&self) -> Result<(), CommError> {
        self.counted(self.inner.barrier(), Operation::Barrier, (DType::U8, 0))
    }

    fn split(&self, color: Option<usize>, key: usize, name: &str) -> Result<Option<Group>, CommError> {
        let group = self.inner.split(color, key, name)?;
        Ok(group.map(|inner| Arc::new(Self::new(inner, self.ledger.clone())) as Group))
    }

    fn start_all_reduce(&self, data: HostBuffer, op: ReduceOp) -> Result<Request, CommError> {
        let payload = (data.dtype(), data.len());
        self.counted(self.inner.start_all_reduce(data, op), Operation::AllReduce, payload)
    }

    fn start_reduce_scatter(&self, input: HostBuffer, op: ReduceOp) -> Result<Request, CommError> {
        let payload = (input.dtype(), input.len());
        self.counted(self.inner.start_reduce_scatter(input, op), Operation::ReduceScatter, payload)
    }

    fn start_all_gather(&self, input: HostBuffer) -> Result<Request, CommError> {
        let payload = (input.dtype(), input.len());
        self.counted(self.inner.start_all_gather(input), Operation::AllGather, payload)
    }

    fn start_send(&self, data: HostBuffer, to: usize, tag: u32) -> Result<Request, CommError> {
        let payload = (data.dtype(), data.len());
        self.counted(self.inner.start_send(data, to, tag), Operation::Send, payload)
    }

    fn start_recv(&self, dtype: DType, len: usize, from: usize, tag: u32) -> Result<Request, CommError> {
        self.counted(self.inner.start_recv(dtype, len, from, tag), Operation::Recv, (dtype, len))
    }
}
