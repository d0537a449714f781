//! Initial values of parameters that are made when they are needed, one after the other.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use burn::tensor::Tensor;

/// Initial values of parameters by name, not yet computed: of a model of which a rank keeps a part
/// of each parameter, they can be made, sharded and dropped one after the other, so that all of
/// them never exist at once.
///
/// Clones share the content.
#[derive(Clone, Default)]
pub struct DeferredParameters(Arc<Mutex<BTreeMap<String, Make>>>);

/// Makes the value of a parameter, flat and without autodiff.
pub type Make = Box<dyn FnOnce() -> Tensor<1> + Send>;

impl DeferredParameters {
    /// Leaves the parameter called `name` for later: `make` returns its value, flat and without
    /// autodiff. The last one for a name counts.
    pub fn defer(&self, name: &str, make: impl FnOnce() -> Tensor<1> + Send + 'static) {
        self.lock().insert(name.to_owned(), Box::new(make));
    }

    /// Function that makes the value of a parameter; `None` for a parameter that was not deferred,
    /// or was taken before.
    pub fn take(&self, name: &str) -> Option<Make> {
        self.lock().remove(name)
    }

    /// Name of the alphabetically first parameter that has not been taken.
    pub fn first(&self) -> Option<String> {
        self.lock().keys().next().cloned()
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

#[cfg(test)]
mod tests {
    use burn::tensor::Device;

    use super::*;

    #[test]
    fn values_are_made_once_and_when_taken() {
        let deferred = DeferredParameters::default();
        let value = |number: f32| move || Tensor::<1>::from_floats([number], &Device::flex());
        deferred.clone().defer("b", value(1.0));
        deferred.defer("a", value(2.0));
        deferred.defer("b", value(3.0));
        assert_eq!(deferred.first().as_deref(), Some("a"));
        let made = deferred.take("b").expect("it was left for later")();
        assert_eq!(made.into_data().iter::<f32>().collect::<Vec<_>>(), [3.0]);
        assert!(deferred.take("b").is_none() && deferred.take("c").is_none());
    }
}
