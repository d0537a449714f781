//! Counters of the tensors that an offloader has moved.

use std::sync::atomic::{AtomicU64, Ordering};

/// Tensors that an [`Offloader`](super::Offloader) has received so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moved {
    /// Tensors submitted for moving, except tensors whose operation was found to have no backward
    /// before they were read.
    pub tensors: u64,
    /// Bytes of these tensors.
    pub bytes: u64,
    /// Bytes that stay on the device.
    pub staying: u64,
    /// Bytes that were uploaded again. Tensors that were needed before their download are not
    /// included.
    pub returned: u64,
}

/// Atomic counters behind [`Moved`].
#[derive(Debug, Default)]
pub(super) struct Counters {
    tensors: AtomicU64,
    bytes: AtomicU64,
    staying: AtomicU64,
    returned: AtomicU64,
}

impl Counters {
    pub fn moved(&self) -> Moved {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let Self { tensors, bytes, staying, returned } = self;
        Moved { tensors: of(tensors), bytes: of(bytes), staying: of(staying), returned: of(returned) }
    }

    /// A tensor is submitted for moving.
    pub fn submitted(&self, bytes: u64) {
        self.tensors.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// A submitted tensor is not moved after all.
    pub fn was_not_moved(&self, bytes: u64) {
        self.tensors.fetch_sub(1, Ordering::Relaxed);
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    pub fn stays(&self, bytes: u64) {
        self.staying.fetch_add(bytes, Ordering::Relaxed);
    }

    pub fn returns(&self, bytes: u64) {
        self.returned.fetch_add(bytes, Ordering::Relaxed);
    }
}
