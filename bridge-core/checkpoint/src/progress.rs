//! Progress of a save, summed over the threads that write.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Progress of a save.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SaveProgress {
    /// The iteration being saved.
    pub iteration: u64,
    /// Bytes of tensors passed to the operating system.
    pub bytes_done: u64,
    /// Bytes of tensors in total.
    pub bytes_total: u64,
}

/// Called from the writing threads, about once per megabyte.
pub type ProgressFn = Arc<dyn Fn(SaveProgress) + Send + Sync>;

/// Sums the progress of the writing threads.
pub(super) struct ProgressMeter {
    pub(super) progress: Option<ProgressFn>,
    pub(super) iteration: u64,
    pub(super) done: AtomicU64,
    pub(super) total: u64,
}

impl ProgressMeter {
    pub(super) fn add(&self, bytes: u64) {
        let bytes_done = self.done.fetch_add(bytes, Ordering::Relaxed) + bytes;
        if let Some(progress) = &self.progress {
            progress(SaveProgress { iteration: self.iteration, bytes_done, bytes_total: self.total });
        }
    }
}
