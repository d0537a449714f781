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
    scope: Arc<OffloadScope>,
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
    pub fn new(tensor: DispatchTensor, scope: Arc<OffloadScope>, counters: Arc<Counters>) -> Arc<Self> {
        let bytes = bytes_of(&tensor);
        counters.submitted(bytes);
        let state = Mutex::new(TransferState::Downloading(tensor));
        let entry = Arc::new(Self { state, bytes, scope: Arc::clone(&scope), counters });
        scope.entries.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::downgrade(&entry));
        entry
    }

    pub fn scope(&self) -> &OffloadScope {
        &self.scope
    }

    /// The scope, for tests of its lifetime.
    #[cfg(test)]
    pub fn shared_scope(&self) -> Arc<OffloadScope> {
        Arc::clone(&self.scope)
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

    /// Returns the tensor on the device, uploading it if it is on the host. Its shape is the one in
    /// which it was first saved. Panics if the download or an upload failed.
    pub fn upload(&self) -> DispatchTensor {
        let mut state = self.state();
        // The result of a download that is still in progress is dropped.
        let tensor = match std::mem::replace(&mut *state, TransferState::UploadFailed) {
            TransferState::Downloading(tensor) | TransferState::OnDevice(tensor) => tensor,
            TransferState::OnHost(host) => {
                self.counters.returns(self.bytes);
                host.upload()
            }
            TransferState::DownloadFailed(message) => panic!("an activation could not be moved to the host: {message}"),
            TransferState::UploadFailed => panic!("an activation could not be uploaded from the host"),
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
            self.counters.was_not_moved(self.bytes);
        }
    }
}

fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied());
    text.unwrap_or("the thread that read it panicked").to_owned()
}

/// Activations offloaded in one scope (a segment's forward), uploaded together when backward
/// reaches it.
#[derive(Default)]
pub(super) struct OffloadScope {
    entries: Mutex<Vec<Weak<Entry>>>,
    /// The scope opened before this one, whose backward comes next.
    previous: Weak<Self>,
    has_asked: AtomicBool,
}

impl OffloadScope {
    /// An empty scope, opened after `previous`.
    pub fn after(previous: Weak<Self>) -> Self {
        Self { previous, ..Self::default() }
    }

    /// The previous scope, if it exists, on the first call only.
    pub fn previous_once(&self) -> Option<Arc<Self>> {
        if self.has_asked.swap(true, Ordering::Relaxed) { None } else { self.previous.upgrade() }
    }

    /// Uploads the tensors that are on the host.
    pub fn upload(&self) {
        let entries = std::mem::take(&mut *self.entries.lock().unwrap_or_else(PoisonError::into_inner));
        // Backward goes from the last to the first.
        for entry in entries.iter().rev().filter_map(Weak::upgrade).filter(|entry| entry.is_on_host()) {
            entry.upload();
        }
    }
}
