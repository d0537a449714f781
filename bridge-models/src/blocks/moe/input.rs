//! Inputs of a mixture of experts besides the residual stream.

use bridge_core::model::{Auxiliary, WeightGradientStore};
use bridge_kernels::DropoutKey;
use burn::tensor::{Int, Tensor};

use crate::blocks::regions::Regions;

/// Inputs of the block besides the residual stream.
pub(crate) struct MoeInput<'a> {
    /// The ranks that compute it together.
    pub regions: &'a Regions,
    /// Global layer number.
    pub layer: usize,
    /// Destination of the auxiliary losses.
    pub auxiliary: Auxiliary<'a>,
    /// Key of the router's random numbers in training; `None` otherwise.
    pub key: Option<DropoutKey>,
    /// True for tokens that are padding, `[b, t]` of this context-parallel rank's part of the
    /// sequence; `None` if no token is.
    pub padding: Option<&'a [bool]>,
    /// The tokens, `[b, t]` of this context-parallel rank's part of the sequence.
    pub tokens: Option<&'a Tensor<2, Int>>,
    /// Store for the deferred gradients of a dense block in the layer's place; experts compute
    /// theirs at once.
    pub weight_gradients: Option<&'a WeightGradientStore>,
}

impl MoeInput<'_> {
    /// True for padding among the `b` times `t` tokens that a router has, `[b * t]`; empty if no
    /// token is padding.
    pub fn padding_of_router(&self, b: usize, t: usize) -> Vec<bool> {
        self.padding.map_or_else(Vec::new, |padding| self.of_router(padding, b, t))
    }

    /// Numbers of the tokens of a router, `[b * t]`.
    pub fn tokens_of_router(&self, b: usize, t: usize) -> Vec<i64> {
        let tokens = self.tokens.expect("a router by tokens is told them");
        self.of_router(&tokens.clone().into_data().iter::<i64>().collect::<Vec<_>>(), b, t)
    }

    /// Values by token of the `b` times `t` tokens that a router has.
    fn of_router<T: Copy>(&self, values: &[T], b: usize, t: usize) -> Vec<T> {
        let length = values.len() / b;
        // Either the tokens of a tensor-parallel region, or those of this rank's residual stream.
        let own = if self.regions.shards_experts_alike() { 0..length } else { self.regions.own_rows(length) };
        assert_eq!(own.len(), t, "a router has as many tokens of a sequence as its values");
        values.chunks_exact(length).flat_map(|row| row[own.clone()].iter().copied()).collect()
    }
}
