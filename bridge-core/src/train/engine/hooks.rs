//! Work of the loop around the regions of a pass: parameters before, gradients after, reductions in
//! flight.

use std::ops::Range;

use bridge_dist::comm::CommError;
use burn::tensor::Tensor;

use crate::model::{Batch, ModelChunk};
use crate::optim::{GradientBuffer, GradientReducer, ShardedParameters};
use crate::train::engine::executor::{RegionContext, RegionHooks};
use crate::train::engine::forward_step::ForwardStep;

/// Training: one micro-batch through one chunk.
pub(in crate::train) struct TrainHooks<'a> {
    pub(in crate::train) forward_step: &'a mut dyn ForwardStep,
    pub(in crate::train) batch: &'a Batch,
    /// Factor on the loss sum.
    pub(in crate::train) factor: f64,
    pub(in crate::train) gradients: &'a mut GradientBuffer,
    pub(in crate::train) reducer: &'a mut GradientReducer,
    pub(in crate::train) parameters: &'a mut ShardedParameters,
    /// Index of the chunk.
    pub(in crate::train) chunk: usize,
    /// True if gradients are complete as backward goes: their reduction starts at once. Otherwise
    /// they are only accumulated.
    pub(in crate::train) reduce_now: bool,
}

impl RegionHooks for TrainHooks<'_> {
    fn before_region(&mut self, chunk: &mut dyn ModelChunk, region: RegionContext<'_>) -> Result<(), CommError> {
        gather(self.parameters, self.chunk, chunk, region)
    }

    fn parameters_unused(&mut self, chunk: &mut dyn ModelChunk, segments: &Range<usize>) {
        self.parameters.reshard(self.chunk, chunk, segments);
    }

    fn objective(&mut self, loss_sum: Tensor<1>) -> Tensor<1> {
        self.forward_step.objective(loss_sum, self.batch) * self.factor
    }

    fn gradient(&mut self, name: &str, gradient: Tensor<1>) {
        self.gradients.add(name, gradient);
    }

    fn backward_done(&mut self, segments: &Range<usize>) -> Result<(), CommError> {
        // The gradients of a region are held until here anyway.
        self.gradients.flush();
        if self.reduce_now {
            self.reducer.reduce_complete_buckets(self.chunk, segments.start, self.gradients)?;
        }
        Ok(())
    }
}

/// Evaluation: parameters are gathered if they are sharded; there are no gradients.
pub(in crate::train) struct EvaluationHooks<'a> {
    /// Gathers parameters; `None` if the model has all of them, as a reference or a teacher does.
    pub(in crate::train) parameters: Option<&'a mut ShardedParameters>,
    /// Index of the chunk.
    pub(in crate::train) chunk: usize,
}

impl RegionHooks for EvaluationHooks<'_> {
    fn before_region(&mut self, chunk: &mut dyn ModelChunk, region: RegionContext<'_>) -> Result<(), CommError> {
        match &mut self.parameters {
            Some(parameters) => gather(parameters, self.chunk, chunk, region),
            None => Ok(()),
        }
    }

    fn parameters_unused(&mut self, chunk: &mut dyn ModelChunk, segments: &Range<usize>) {
        if let Some(parameters) = &mut self.parameters {
            parameters.reshard(self.chunk, chunk, segments);
        }
    }

    fn objective(&mut self, loss_sum: Tensor<1>) -> Tensor<1> {
        loss_sum
    }

    fn gradient(&mut self, _name: &str, _gradient: Tensor<1>) {}
}

/// Gives a region its parameters, and starts to gather those of the next one while it runs.
fn gather(
    parameters: &mut ShardedParameters,
    index: usize,
    chunk: &mut dyn ModelChunk,
    region: RegionContext<'_>,
) -> Result<(), CommError> {
    parameters.unshard(index, chunk, region.segments)?;
    match region.next {
        Some(next) => parameters.prefetch(index, next),
        None => Ok(()),
    }
}
