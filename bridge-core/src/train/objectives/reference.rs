//! The model as a run began it, which objectives compare with: frozen, and run before each pass.

use burn::tensor::Tensor;

use crate::model::{Batch, CustomLossCall, Mode};
use crate::train::engine::executor::RegionHooks;
use crate::train::engine::pipeline::{MicroBatchInput, MicroBatches};

/// Micro-batches for the reference, whose parameters are all there.
pub(in crate::train) struct ReferenceBatches<'a> {
    pub batches: &'a [Batch],
    /// Loss of the head for each micro-batch.
    pub losses: &'a [Option<CustomLossCall>],
}

impl MicroBatches for ReferenceBatches<'_> {
    fn batch(&self, microbatch: usize) -> Batch {
        self.batches[microbatch].clone()
    }

    fn prepare(&mut self, microbatch: usize) -> MicroBatchInput {
        let input = MicroBatchInput::new(self.batches[microbatch].clone(), Mode::Evaluate);
        MicroBatchInput { custom_loss: self.losses[microbatch].clone(), ..input }
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
