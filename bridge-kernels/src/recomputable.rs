//! Values that a backward makes again, from what other operations keep anyway, where it would
//! otherwise keep them.

use std::fmt;
use std::sync::Arc;

use burn::tensor::Tensor;

use crate::flex::Values;

/// Closure that recomputes the values of a tensor, with the same bits.
#[derive(Clone)]
pub struct Recompute(Arc<dyn Fn() -> Values + Send + Sync>);

impl Recompute {
    pub(crate) fn new(make: impl Fn() -> Values + Send + Sync + 'static) -> Self {
        Self(Arc::new(make))
    }

    pub(crate) fn make(&self) -> Values {
        (self.0)()
    }
}

impl fmt::Debug for Recompute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Recompute")
    }
}

/// A tensor, and how its values are made again if that is cheaper than to keep them.
#[derive(Clone, Debug)]
pub struct Recomputable<const D: usize> {
    /// The tensor.
    pub tensor: Tensor<D>,
    /// `None` where they have to be kept.
    pub again: Option<Recompute>,
}

impl<const D: usize> Recomputable<D> {
    /// The tensor after `change`, which may change its shape and not its values or their order.
    pub fn reshaped<const E: usize>(self, change: impl FnOnce(Tensor<D>) -> Tensor<E>) -> Recomputable<E> {
        Recomputable { tensor: change(self.tensor), again: self.again }
    }
}

impl<const D: usize> From<Tensor<D>> for Recomputable<D> {
    fn from(tensor: Tensor<D>) -> Self {
        Self { tensor, again: None }
    }
}

/// Form in which a backward keeps an input of its operation.
pub(crate) enum Source {
    Kept(Values),
    Recompute(Recompute),
}

impl Source {
    pub fn new(values: Values, again: Option<Recompute>) -> Self {
        again.map_or(Self::Kept(values), Self::Recompute)
    }

    /// The values, which from then on nobody keeps.
    pub fn values(self) -> Values {
        match self {
            Self::Kept(values) => values,
            Self::Recompute(again) => again.make(),
        }
    }
}
