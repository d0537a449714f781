//! Memory of the process in large blocks, as the regions count it.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Counters of all regions of the process: a program has one.
pub(super) struct Counters {
    used: AtomicUsize,
    most_used: AtomicUsize,
    held: AtomicUsize,
    blocks: AtomicUsize,
}

pub(super) static COUNTERS: Counters = Counters {
    used: AtomicUsize::new(0),
    most_used: AtomicUsize::new(0),
    held: AtomicUsize::new(0),
    blocks: AtomicUsize::new(0),
};

impl Counters {
    /// A block of `bytes` was handed out; the region has handed out `held` bytes at one time or
    /// another.
    pub(super) fn took(&self, bytes: usize, held: usize) {
        let used = self.used.fetch_add(bytes, Ordering::Relaxed) + bytes;
        self.most_used.fetch_max(used, Ordering::Relaxed);
        self.held.fetch_max(held, Ordering::Relaxed);
        self.blocks.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn gave(&self, bytes: usize) {
        self.used.fetch_sub(bytes, Ordering::Relaxed);
        self.blocks.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Memory of the process in large blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// Bytes of the blocks in use.
    pub used_bytes: usize,
    /// The most they had.
    pub most_used_bytes: usize,
    /// Bytes that the allocator has taken from the system: in use, or kept for reuse.
    pub held_bytes: usize,
    /// Blocks in use.
    pub num_blocks: usize,
}

/// Current memory in large blocks; `None` in a program without the allocator, or before the first
/// such block.
pub fn usage() -> Option<Usage> {
    let read = |counter: &AtomicUsize| counter.load(Ordering::Relaxed);
    let held_bytes = read(&COUNTERS.held);
    (held_bytes > 0).then(|| Usage {
        used_bytes: read(&COUNTERS.used),
        most_used_bytes: read(&COUNTERS.most_used),
        held_bytes,
        num_blocks: read(&COUNTERS.blocks),
    })
}
