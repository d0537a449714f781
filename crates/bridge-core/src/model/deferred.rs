//! Initial values of parameters that are made when they are needed, one after the other.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use burn::tensor::Tensor;

/// What parameters will begin with, by name: of a model of which a rank keeps a part of each parameter, one after the other can be made, cut
/// and dropped, and all of them need never be there.
///
/// Clones share the content.
#[derive(Clone, Default)]
pub struct DeferredParameters(Arc<Mutex<BTreeMap<String, Make>>>);

type Make = Box<dyn FnOnce() -> Tensor<1> + Send>;

impl DeferredParameters {
    /// Leaves the parameter called `name` for later: `make` returns its value, flat and without autodiff.
    pub fn defer(&self, name: &str, make: impl FnOnce() -> Tensor<1> + Send + 'static) {
        self.lock().insert(name.to_owned(), Box::new(make));
    }

    /// Makes the value of a parameter that was left for later.
    pub fn take(&self, name: &str) -> Option<Tensor<1>> {
        let make = self.lock().remove(name)?;
        Some(make())
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Make>> {
        // A map is whole even if a thread panicked while it had the lock.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for DeferredParameters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.lock().keys()).finish()
    }
}
