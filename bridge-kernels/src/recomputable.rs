//! Values that a backward recomputes, from tensors that other operations keep anyway, instead of
//! keeping them itself.

use std::fmt;
use std::sync::Arc;

use burn::backend::Flex;
use burn::backend::tensor::FloatTensor;
use burn::tensor::Tensor;

use crate::cpu::element::Element;
use crate::flex::{Typed, Values};

/// Closure that recomputes the values of a tensor, with the same bits.
#[derive(Clone)]
pub struct Recompute(Arc<dyn Fn() -> FloatTensor<Flex> + Send + Sync>);

impl Recompute {
    pub(crate) fn new<E: Element>(make: impl Fn() -> Typed<E> + Send + Sync + 'static) -> Self {
        Self(Arc::new(move || make().0))
    }

    /// The values of a tensor of such elements.
    pub(crate) fn make<E: Element>(&self) -> Typed<E> {
        Typed::new((self.0)())
    }
}

impl fmt::Debug for Recompute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Recompute")
    }
}

/// A tensor, and how to recompute its values if that is cheaper than keeping them.
#[derive(Clone, Debug)]
pub struct Recomputable<const D: usize> {
    /// The tensor.
    pub tensor: Tensor<D>,
    /// Recomputes the values; `None` if they have to be kept.
    pub recompute: Option<Recompute>,
}

impl<const D: usize> Recomputable<D> {
    /// The tensor after `change`, which may change its shape and not its values or their order.
    pub fn reshaped<const E: usize>(self, change: impl FnOnce(Tensor<D>) -> Tensor<E>) -> Recomputable<E> {
        Recomputable { tensor: change(self.tensor), recompute: self.recompute }
    }
}

impl<const D: usize> From<Tensor<D>> for Recomputable<D> {
    fn from(tensor: Tensor<D>) -> Self {
        Self { tensor, recompute: None }
    }
}

/// An input of an operation in its backward: kept or recomputed.
pub(crate) enum Source {
    Kept(Values),
    Recompute(Recompute),
}

impl Source {
    pub fn new(values: Values, recompute: Option<Recompute>) -> Self {
        recompute.map_or(Self::Kept(values), Self::Recompute)
    }

    /// The values, kept or recomputed.
    pub fn values(self) -> Values {
        match self {
            Self::Kept(values) => values,
            Self::Recompute(recompute) => recompute.make(),
        }
    }
}
