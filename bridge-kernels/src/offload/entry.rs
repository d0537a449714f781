//! A tensor on its way to the host and back, and the tensors of one scope.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use burn::backend::DispatchTensor;

use super::counters::Counters;
use super::device::{Host, bytes_of};

/// A tensor that is moved.
pub(super) struct Entry {
    state: Mutex<TransferState>,
    bytes: u64,
    group: Arc<Group>,
    counters: Arc<Counters>,
}

/// State of the transfer of a tensor to the host and back.
enum TransferState {
    /// On the device, waiting for its download or being downloaded.
    Downloading(DispatchTensor),
    /// On the host.
    OnHost(Host),
    /// On the device again.
    OnDevice(DispatchTensor),
    /// The download failed.
    DownloadFailed(String),
    /// The upload panicked.
    UploadFailed,
}

impl Entry {
    pub fn new(tensor: DispatchTensor, group: Arc<Group>, counters: Arc<Counters>) -> Arc<Self> {
        let bytes = bytes_of(&tensor);
        counters.leaves(bytes);
        let state = Mutex::new(TransferState::Downloading(tensor));
        let entry = Arc::new(Self { state, bytes, group: Arc::clone(&group), counters });
        group.entries.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::downgrade(&entry));
        entry
    }

    pub fn group(&self) -> &Group {
        &self.group
    }

    /// The scope, for tests of its lifetime.
    #[cfg(test)]
    pub fn group_of(&self) -> Arc<Group> {
        Arc::clone(&self.group)
    }

    fn state(&self) -> MutexGuard<'_, TransferState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Downloads the tensor of an entry with `read`, if the entry is still in use.
    pub fn read(this: &Weak<Self>, read: impl FnOnce(DispatchTensor) -> Result<Host, String>) {
        let tensor = match this.upgrade().map(|entry| entry.leaving()) {
            Some(Some(tensor)) => tensor,
            _ => return,
        };
        // No reference to the entry is held meanwhile: it is dropped with its pullback.
        let read = catch_unwind(AssertUnwindSafe(|| read(tensor))).unwrap_or_else(|panic| Err(message(&*panic)));
        let Some(entry) = this.upgrade() else { return };
        let mut state = entry.state();
        if matches!(*state, TransferState::Downloading(_)) {
            *state = match read {
                Ok(host) => TransferState::OnHost(host),
                Err(message) => TransferState::DownloadFailed(message),
            };
        }
    }

    fn leaving(&self) -> Option<DispatchTensor> {
        match &*self.state() {
            TransferState::Downloading(tensor) => Some(tensor.clone()),
            TransferState::OnHost(_)
            | TransferState::OnDevice(_)
            | TransferState::DownloadFailed(_)
            | TransferState::UploadFailed => None,
        }
    }

    fn is_on_host(&self) -> bool {
        matches!(*self.state(), TransferState::OnHost(_))
    }

    /// The tensor on the device, in the shape in which it was first kept.
    ///
    /// # Panics
    /// If it could not be read.
    pub fn bring_back(&self) -> DispatchTensor {
        let mut state = self.state();
        // A download in progress comes too late then.
        let tensor = match std::mem::replace(&mut *state, TransferState::UploadFailed) {
            TransferState::Downloading(tensor) | TransferState::OnDevice(tensor) => tensor,
            TransferState::OnHost(host) => {
                self.counters.returns(self.bytes);
                host.upload()
            }
            TransferState::DownloadFailed(message) => panic!("an activation could not be moved to the host: {message}"),
            TransferState::UploadFailed => panic!("an activation could not be brought back from the host"),
        };
        *state = TransferState::OnDevice(tensor.clone());
        tensor
    }
}

impl Drop for Entry {
    /// A tensor that was neither read nor requested, because its operation had no backward, was not
    /// moved.
    fn drop(&mut self) {
        if matches!(self.state.get_mut().unwrap_or_else(PoisonError::into_inner), TransferState::Downloading(_)) {
            self.counters.left_not(self.bytes);
        }
    }
}

fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied());
    text.unwrap_or("the thread that read it panicked").to_owned()
}

/// The tensors of a scope.
#[derive(Default)]
pub(super) struct Group {
    entries: Mutex<Vec<Weak<Entry>>>,
    /// The scope before it.
    before: Weak<Self>,
    has_asked: AtomicBool,
}

impl Group {
    /// Entries of a scope that follows another one.
    pub fn behind(before: Weak<Self>) -> Self {
        Self { before, ..Self::default() }
    }

    /// The previous scope, if it exists, on the first call only.
    pub fn before_once(&self) -> Option<Arc<Self>> {
        if self.has_asked.swap(true, Ordering::Relaxed) { None } else { self.before.upgrade() }
    }

    /// Brings back the tensors that are on the host.
    pub fn bring_back(&self) {
        let entries = std::mem::take(&mut *self.entries.lock().unwrap_or_else(PoisonError::into_inner));
        // Backward goes from the last to the first.
        for entry in entries.iter().rev().filter_map(Weak::upgrade).filter(|entry| entry.is_on_host()) {
            entry.bring_back();
        }
    }
}
