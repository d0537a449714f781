//! The micro-batches of a training step and of an evaluation, as the executor asks for them.

use std::sync::Arc;

use bridge_kernels::Philox;
use burn::tensor::Tensor;

use super::settings::boundary;
use super::{MicroBatchInput, MicroBatches, TrainWork};
use crate::config::RunConfig;
use crate::model::{Batch, LayerMetrics, Mode};
use crate::optim::GradientBuffer;
use crate::train::forward_step::ForwardStep;

/// The micro-batches of one training step on this rank.
pub(in crate::train) struct StepWork<'a> {
    pub config: &'a RunConfig,
    pub batches: &'a [Batch],
    /// Where the dropout masks of each micro-batch come from.
    pub streams: &'a [Philox],
    /// What the loss sum of each micro-batch is multiplied by before backward.
    pub factors: &'a [f64],
    /// What the layers report of each micro-batch.
    pub metrics: &'a [Arc<LayerMetrics>],
    pub forward_step: &'a mut dyn ForwardStep,
    pub gradients: &'a mut GradientBuffer,
}

impl MicroBatches for StepWork<'_> {
    fn boundary(&self, microbatch: usize) -> [usize; 3] {
        boundary(self.config, self.batches[microbatch].tokens.dims())
    }

    fn prepare(&mut self, microbatch: usize) -> MicroBatchInput {
        let batch = self.batches[microbatch].clone();
        MicroBatchInput {
            // A loss that is a mean counts like the mean of the micro-batch's token losses.
            auxiliary_scale: self.factors[microbatch] * batch.num_tokens,
            metrics: Some(Arc::clone(&self.metrics[microbatch])),
            ..MicroBatchInput::new(batch, Mode::Train(self.streams[microbatch]))
        }
    }
}

impl TrainWork for StepWork<'_> {
    fn objective(&mut self, microbatch: usize, batch: &Batch, loss_sum: Tensor<1>) -> Tensor<1> {
        self.forward_step.objective(loss_sum, batch) * self.factors[microbatch]
    }

    fn gradient(&mut self, name: &str, gradient: Tensor<1>) {
        self.gradients.add(name, gradient);
    }
}

/// Micro-batches to be evaluated.
pub(in crate::train) struct EvaluationBatches<'a> {
    pub config: &'a RunConfig,
    pub batches: &'a [Batch],
}

impl MicroBatches for EvaluationBatches<'_> {
    fn boundary(&self, microbatch: usize) -> [usize; 3] {
        boundary(self.config, self.batches[microbatch].tokens.dims())
    }

    fn prepare(&mut self, microbatch: usize) -> MicroBatchInput {
        MicroBatchInput::new(self.batches[microbatch].clone(), Mode::Evaluate)
    }
}
