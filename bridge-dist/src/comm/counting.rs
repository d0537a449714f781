//! A communicator that counts operations, elements and bytes, by group and operation, and forwards
//! them to another one.
//!
//! # What is counted
//! The *payload*: the data that this rank passes to the communicator, counted once, for any
//! algorithm of the communicator.
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
//! Non-blocking forms count like their blocking ones, when they are started. Operations that fail,
//! operations of groups of one rank, and the creation of groups do not count.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use super::layer::{Call, Layer, Operation};
use super::lock::lock;
use super::{CommError, Communicator, Group, Request};

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
        lock(&self.counts).clone()
    }

    /// The totals so far; resets them to zero.
    pub fn take(&self) -> Counts {
        std::mem::take(&mut *lock(&self.counts))
    }

    fn add(&self, group: &str, call: &Call, elements: usize) {
        let mut counts = lock(&self.counts);
        let count = counts.entry((group.to_owned(), call.operation)).or_default();
        count.operations += 1;
        count.elements += elements as u64;
        count.bytes += (elements * call.dtype.size()) as u64;
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
    fn counted<T>(&self, call: &Call, result: Result<T, CommError>) -> Result<T, CommError> {
        if result.is_ok() && self.inner.size() > 1 {
            let hands_over = call.root.is_none_or(|root| root == self.inner.rank());
            self.ledger.add(self.inner.name(), call, if hands_over { call.elements } else { 0 });
        }
        result
    }
}

impl Layer for CountingCommunicator {
    fn inner(&self) -> &dyn Communicator {
        &*self.inner
    }

    fn over(&self, inner: Group) -> Group {
        Arc::new(Self::new(inner, self.ledger.clone()))
    }

    fn blocking<T>(&self, call: &Call, run: impl FnOnce() -> Result<T, CommError>) -> Result<T, CommError> {
        self.counted(call, run())
    }

    fn started<T: Send + 'static>(
        &self,
        call: &Call,
        start: impl FnOnce() -> Result<Request<T>, CommError>,
    ) -> Result<Request<T>, CommError> {
        self.counted(call, start())
    }
}
