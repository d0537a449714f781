//! Log of a rank's calls to its communicators: the last calls, or all calls of a period. The total
//! time of calls is measured in `timed`.

use std::backtrace::Backtrace;
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use super::layer::{Call, Operation};
use super::{Communicator, DType};

/// Progress of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallState {
    /// This rank is in it, or has started it and not seen its end.
    Active,
    /// The call has completed.
    Done,
    /// The call ended with an error.
    Failed,
}

/// One call of an operation.
#[derive(Clone, Debug)]
pub struct CallRecord {
    /// Number of the call among all recorded calls of the rank.
    pub id: u64,
    /// Number of the call among the recorded calls of its group, from 0. Collectives have the same
    /// number on all ranks of the group.
    pub sequence: u64,
    /// The operation.
    pub operation: Operation,
    /// Name of the group.
    pub group: String,
    /// The group's ranks as ranks of the world.
    pub ranks: Arc<[usize]>,
    /// Element type.
    pub dtype: DType,
    /// Elements of the input, or of the only buffer.
    pub elements: usize,
    /// Bytes of these.
    pub bytes: usize,
    /// The rank of the world whose buffer a broadcast hands over.
    pub root: Option<usize>,
    /// True if the rank continues during the call.
    pub is_background: bool,
    /// When it was called.
    pub started: Instant,
    /// Interval in which the rank waited for a background call.
    pub waited: Option<(Instant, Instant)>,
    /// When it was over.
    pub ended: Option<Instant>,
    /// Progress of the call.
    pub state: CallState,
    /// Backtrace of the start of the call, if backtraces are recorded.
    pub stack: Option<String>,
}

/// Recording of backtraces with calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stacks {
    /// Backtraces are recorded, which takes longer than most calls.
    Taken,
    /// Backtraces are not recorded.
    Left,
}

/// The calls of a rank on all its groups. Calls are not kept before recording is enabled; until
/// then a call costs one check of a flag.
#[derive(Debug, Default)]
pub struct CallLog {
    /// Number of the last calls that are kept.
    last: AtomicUsize,
    /// True if all calls are kept.
    keeps_all: AtomicBool,
    takes_stacks: AtomicBool,
    calls: Mutex<Calls>,
}

#[derive(Debug, Default)]
struct Calls {
    next: u64,
    /// In the order of their numbers, which leave no gap.
    kept: VecDeque<CallRecord>,
    /// Calls of each group so far.
    of_groups: BTreeMap<(String, Arc<[usize]>), u64>,
}

impl CallLog {
    /// Keeps the last `count` calls from now on; 0 keeps none.
    pub fn keep_last(&self, count: usize, stacks: Stacks) {
        self.takes_stacks.store(stacks == Stacks::Taken, Ordering::Relaxed);
        self.last.store(count, Ordering::Relaxed);
    }

    /// Keeps all calls from now on.
    pub fn keep_all(&self) {
        self.keeps_all.store(true, Ordering::Relaxed);
    }

    /// Keeps no more than [`keep_last`](Self::keep_last) says, from the next call on.
    pub fn keep_all_no_more(&self) {
        self.keeps_all.store(false, Ordering::Relaxed);
        if self.last.load(Ordering::Relaxed) == 0 {
            self.lock().kept.clear();
        }
    }

    /// The calls that are kept, the oldest first.
    pub fn calls(&self) -> Vec<CallRecord> {
        self.lock().kept.iter().cloned().collect()
    }

    /// Name and ranks of each group, with its calls so far, those included that are kept no more.
    pub fn groups(&self) -> Vec<(String, Arc<[usize]>, u64)> {
        let calls = self.lock();
        calls.of_groups.iter().map(|((name, ranks), count)| (name.clone(), Arc::clone(ranks), *count)).collect()
    }

    /// Notes that a call begins; its number, if it is kept.
    pub(super) fn begins(&self, call: &Call, group: &dyn Communicator, is_background: bool) -> Option<u64> {
        let keeps_all = self.keeps_all.load(Ordering::Relaxed);
        let last = self.last.load(Ordering::Relaxed);
        if last == 0 && !keeps_all {
            return None;
        }
        let takes_stacks = self.takes_stacks.load(Ordering::Relaxed);
        let stack = takes_stacks.then(|| Backtrace::force_capture().to_string());
        let mut calls = self.lock();
        let (name, ranks) = (group.name().to_owned(), group.world_ranks());
        let count = calls.of_groups.entry((name.clone(), Arc::clone(&ranks))).or_default();
        let sequence = *count;
        *count += 1;
        let id = calls.next;
        calls.next += 1;
        calls.kept.push_back(CallRecord {
            id,
            sequence,
            operation: call.operation,
            root: call.root.and_then(|root| ranks.get(root).copied()),
            group: name,
            ranks,
            dtype: call.dtype,
            elements: call.elements,
            bytes: call.bytes(),
            is_background,
            started: Instant::now(),
            waited: None,
            ended: None,
            state: CallState::Active,
            stack,
        });
        while !keeps_all && calls.kept.len() > last {
            calls.kept.pop_front();
        }
        Some(id)
    }

    /// Records the end of a call; `waiting` is the time at which the rank began to wait for a
    /// background call.
    pub(super) fn ends(&self, id: Option<u64>, waiting: Option<Instant>, state: CallState) {
        let Some(id) = id else { return };
        let mut calls = self.lock();
        let first = calls.kept.front().map_or(0, |call| call.id);
        let place = id.checked_sub(first).map(|place| place as usize);
        // The call may have been dropped from the log for later calls.
        if let Some(call) = place.and_then(|place| calls.kept.get_mut(place)) {
            let now = Instant::now();
            (call.ended, call.waited, call.state) = (Some(now), waiting.map(|since| (since, now)), state);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Calls> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
