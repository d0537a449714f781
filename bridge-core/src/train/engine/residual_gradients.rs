//! Gradients of the residual stream, kept as they come by in steps that save them.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use burn::tensor::Tensor;

use crate::train::engine::residual_stream::numbers;

/// Gradient of this rank's part of the residual stream of a micro-batch.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::train) struct ResidualPart {
    /// Samples, tokens, hidden size.
    pub shape: [usize; 3],
    /// Values of the gradient.
    pub values: Vec<f32>,
}

/// Gradients of a step with respect to the inputs of segments, by the segment's name, with one part
/// for each micro-batch in order. In steps that do not keep gradients, a call costs one atomic
/// load.
#[derive(Debug, Default)]
pub(in crate::train) struct ResidualGradients {
    is_on: AtomicBool,
    kept: Mutex<BTreeMap<String, Vec<ResidualPart>>>,
}

impl ResidualGradients {
    /// Starts or stops keeping gradients, and drops the kept ones.
    pub fn begin(&self, is_on: bool) {
        self.is_on.store(is_on, Ordering::Relaxed);
        self.kept().clear();
    }

    /// True if gradients are kept.
    pub fn are_on(&self) -> bool {
        self.is_on.load(Ordering::Relaxed)
    }

    /// Keeps the gradient of a segment's input. Gradients of a segment arrive in the order of
    /// micro-batches.
    pub fn add(&self, segment: impl FnOnce() -> String, gradient: &Tensor<3>) {
        if self.are_on() {
            let part = ResidualPart { shape: gradient.dims(), values: numbers(gradient.clone()) };
            self.kept().entry(segment()).or_default().push(part);
        }
    }

    /// Drops the kept gradients: the pass over the micro-batches is repeated.
    pub fn restart(&self) {
        if self.are_on() {
            self.kept().clear();
        }
    }

    /// Stops keeping gradients, and returns the kept ones.
    pub fn end(&self) -> BTreeMap<String, Vec<ResidualPart>> {
        self.is_on.store(false, Ordering::Relaxed);
        std::mem::take(&mut *self.kept())
    }

    fn kept(&self) -> MutexGuard<'_, BTreeMap<String, Vec<ResidualPart>>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use burn::tensor::Device;

    use super::*;

    #[test]
    fn gradients_are_kept_where_they_are_wanted_in_the_order_of_micro_batches() {
        let kept = ResidualGradients::default();
        let gradient = |value: f32| Tensor::<3>::from_data([[[value, 2.0], [3.0, 4.0], [5.0, 6.0]]], &Device::flex());
        kept.add(|| unreachable!("nothing is kept"), &gradient(0.0));
        kept.begin(true);
        kept.add(|| "head".into(), &gradient(9.0));
        kept.restart();
        kept.add(|| "head".into(), &gradient(1.0));
        kept.add(|| "head".into(), &gradient(-1.0));
        let all = kept.end();
        assert_eq!(all["head"].len(), 2);
        assert_eq!(all["head"][0], ResidualPart { shape: [1, 3, 2], values: vec![1.0, 2.0, 3.0, 4.0, 5.0, 6.0] });
        assert_eq!(all["head"][1].values[0], -1.0);
        assert!(!kept.are_on() && kept.end().is_empty());
    }
}
