//! The model as a run began it, which objectives compare with: frozen, and run before each pass.

use burn::tensor::Tensor;

use crate::model::Batch;
use crate::train::engine::executor::RegionHooks;
use crate::train::engine::pipeline::{MicroBatchInput, MicroBatches};

/// Micro-batches for the reference, whose parameters are all there.
pub(in crate::train) struct ReferenceBatches(pub Vec<MicroBatchInput>);

impl MicroBatches for ReferenceBatches {
    fn input(&self, microbatch: usize) -> MicroBatchInput {
        self.0[microbatch].clone()
    }

    fn hooks<'h>(&'h mut self, _microbatch: usize, _chunk: usize, _batch: &'h Batch) -> Box<dyn RegionHooks + 'h> {
        Box::new(Nothing)
    }
}

/// Hooks of a reference, which do nothing.
struct Nothing;

impl RegionHooks for Nothing {
    fn objective(&mut self, loss_sum: Tensor<1>) -> Tensor<1> {
        loss_sum
    }

    fn gradient(&mut self, _name: &str, _gradient: Tensor<1>) {}
}
