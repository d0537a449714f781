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
    place: Mutex<Place>,
    bytes: u64,
    group: Arc<Group>,
    counters: Arc<Counters>,
}

enum Place {
    /// On the device, and waiting to be read or being read.
    Leaving(DispatchTensor),
    /// On the host.
    Host(Host),
    /// On the device again.
    Back(DispatchTensor),
    /// It could not be read.
    Lost(String),
    /// The upload panicked.
    Nowhere,
}

impl Entry {
    pub fn new(tensor: DispatchTensor, group: Arc<Group>, counters: Arc<Counters>) -> Arc<Self> {
        let bytes = bytes_of(&tensor);
        counters.leaves(bytes);
        let place = Mutex::new(Place::Leaving(tensor));
        let entry = Arc::new(Self { place, bytes, group: Arc::clone(&group), counters });
        group.entries.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::downgrade(&entry));
        entry
    }

    pub fn group(&self) -> &Group {
        &self.group
    }

    /// The scope, for tests of what becomes of it.
    #[cfg(test)]
    pub fn group_of(&self) -> Arc<Group> {
        Arc::clone(&self.group)
    }

    fn place(&self) -> MutexGuard<'_, Place> {
        self.place.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads the tensor of an entry that somebody still has, by `read`.
    pub fn read(this: &Weak<Self>, read: impl FnOnce(DispatchTensor) -> Result<Host, String>) {
        let tensor = match this.upgrade().map(|entry| entry.leaving()) {
            Some(Some(tensor)) => tensor,
            _ => return,
        };
        // Nothing of the entry is held meanwhile: it goes when its pullback does.
        let read = catch_unwind(AssertUnwindSafe(|| read(tensor))).unwrap_or_else(|panic| Err(message(&*panic)));
        let Some(entry) = this.upgrade() else { return };
        let mut place = entry.place();
        if matches!(*place, Place::Leaving(_)) {
            *place = match read {
                Ok(host) => Place::Host(host),
                Err(message) => Place::Lost(message),
            };
        }
    }

    fn leaving(&self) -> Option<DispatchTensor> {
        match &*self.place() {
            Place::Leaving(tensor) => Some(tensor.clone()),
            Place::Host(_) | Place::Back(_) | Place::Lost(_) | Place::Nowhere => None,
        }
    }

    fn is_on_host(&self) -> bool {
        matches!(*self.place(), Place::Host(_))
    }

    /// The tensor on the device, in the shape of whoever kept it first.
    ///
    /// # Panics
    /// If it could not be read.
    pub fn bring_back(&self) -> DispatchTensor {
        let mut place = self.place();
        // A download in progress comes too late then.
        let tensor = match std::mem::replace(&mut *place, Place::Nowhere) {
            Place::Leaving(tensor) | Place::Back(tensor) => tensor,
            Place::Host(host) => {
                self.counters.returns(self.bytes);
                host.upload()
            }
            Place::Lost(message) => panic!("an activation could not be moved to the host: {message}"),
            Place::Nowhere => panic!("an activation could not be brought back from the host"),
        };
        *place = Place::Back(tensor.clone());
        tensor
    }
}

impl Drop for Entry {
    /// A tensor that was neither read nor requested, because its operation had no backward, was not
    /// moved.
    fn drop(&mut self) {
        if matches!(self.place.get_mut().unwrap_or_else(PoisonError::into_inner), Place::Leaving(_)) {
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

    /// The scope before, if it is there and nobody has asked this one for it yet.
    pub fn before_once(&self) -> Option<Arc<Self>> {
        if self.has_asked.swap(true, Ordering::Relaxed) { None } else { self.before.upgrade() }
    }

    /// Brings back what is on the host.
    pub fn bring_back(&self) {
        let entries = std::mem::take(&mut *self.entries.lock().unwrap_or_else(PoisonError::into_inner));
        // Backward goes from the last to the first.
        for entry in entries.iter().rev().filter_map(Weak::upgrade).filter(|entry| entry.is_on_host()) {
            entry.bring_back();
        }
    }
}
