//! Gradients of weights that are computed after the backward pass, when there is time for them.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use burn::tensor::Tensor;

/// The weight part of one backward pass, which a linear layer defers while other pipeline stages
/// wait for the gradient of its input (Qi et al. 2024, zero-bubble pipeline parallelism).
///
/// Clones share the content: a layer keeps one in its backward closure.
#[derive(Clone, Default)]
pub struct WeightGradientStore(Arc<Mutex<Vec<Deferred>>>);

struct Deferred {
    parameter: String,
    compute: Box<dyn FnOnce() -> Tensor<1> + Send>,
}

impl WeightGradientStore {
    /// Defers a gradient of the parameter called `parameter`: `compute` returns it, flat and
    /// without a graph. Several for one parameter add up.
    pub fn defer(&self, parameter: &str, compute: impl FnOnce() -> Tensor<1> + Send + 'static) {
        self.lock().push(Deferred { parameter: parameter.to_owned(), compute: Box::new(compute) });
    }

    /// Computes the deferred gradients in order, and empties the store.
    pub fn compute(&self, on_gradient: &mut dyn FnMut(&str, Tensor<1>)) {
        let deferred = std::mem::take(&mut *self.lock());
        for Deferred { parameter, compute } in deferred {
            on_gradient(&parameter, compute());
        }
    }

    /// Number of deferred gradients.
    pub fn len(&self) -> usize {
        self.lock().len()
    }

    /// True if nothing is deferred.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Deferred>> {
        // A list is whole even if a thread panicked while it had the lock.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for WeightGradientStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "WeightGradientStore({} deferred)", self.len())
    }
}
