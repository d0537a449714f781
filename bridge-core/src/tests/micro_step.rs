//! Forward and backward of one micro-batch through a whole model, with closures for the surrounding
//! work of the loop.

use burn::tensor::Tensor;

use crate::model::{Boundary, ForwardContext, ModelChunk};
use crate::train::{Executor, RegionHooks};

/// Hooks made of closures: an objective, and a receiver of gradients.
pub struct Closures<'a> {
    /// See [`RegionHooks::objective`].
    pub objective: &'a mut dyn FnMut(Tensor<1>) -> Tensor<1>,
    /// See [`RegionHooks::gradient`].
    pub on_gradient: &'a mut dyn FnMut(&str, Tensor<1>),
}

impl RegionHooks for Closures<'_> {
    fn objective(&mut self, loss_sum: Tensor<1>) -> Tensor<1> {
        (self.objective)(loss_sum)
    }

    fn gradient(&mut self, name: &str, gradient: Tensor<1>) {
        (self.on_gradient)(name, gradient);
    }
}

/// Forward and backward of one micro-batch. Returns the loss sum, `[1]` float32, without its graph.
///
/// # Panics
/// If the chunk does not end with the loss, or a hook fails.
pub fn forward_backward(
    executor: &Executor,
    chunk: &mut dyn ModelChunk,
    context: &ForwardContext,
    hooks: &mut dyn RegionHooks,
) -> Tensor<1> {
    let (in_flight, output) = executor.forward(chunk, Boundary::default(), context, hooks).unwrap();
    executor.backward(in_flight, Boundary::default(), chunk, context, hooks).unwrap();
    output.loss_sum().expect("the last segment of a model returns the loss")
}
