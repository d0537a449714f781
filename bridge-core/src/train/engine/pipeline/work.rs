//! The micro-batches of a training step and of an evaluation, as the executor asks for them.

use bridge_dist::comm::CommError;
use bridge_dist::schedule::ScheduleKind;
use burn::tensor::Tensor;

use super::{MicroBatchInput, MicroBatches, TrainWork};
use crate::config::RunConfig;
use crate::model::Batch;
use crate::optim::{GradientBuffer, GradientReducer, ShardedParameters};
use crate::plan::settings;
use crate::train::engine::executor::RegionHooks;
use crate::train::engine::forward_step::ForwardStep;
use crate::train::engine::hooks::{EvaluationHooks, TrainHooks};

/// When the reductions of a rank start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::train) enum Reductions {
    /// Reduction after backward of a step or, where gradients are sharded, of a micro-batch.
    Deferred,
    /// Reduction during backward of the last micro-batch.
    InLastMicroBatch,
    /// Reduction during backward of each micro-batch.
    InEachMicroBatch,
}

impl Reductions {
    /// When those of stage `stage` start.
    pub fn from_stage(config: &RunConfig, stage: usize, schedule: ScheduleKind) -> Self {
        // Gradients of weights come after the backward pass of their segment.
        let puts_weights_off = schedule == ScheduleKind::ZeroBubbleH1;
        // The first stage ends last: while it works on the last micro-batch the others have done
        // theirs, and all stages reduce together.
        let waits_for_first = config.dist.align_grad_reduce && stage > 0;
        let settings = settings::distribution(config);
        if puts_weights_off {
            Self::Deferred
        } else if settings.sharding.divides_gradients() {
            Self::InEachMicroBatch
        } else if settings.overlap_grad_reduce && !waits_for_first {
            Self::InLastMicroBatch
        } else {
            Self::Deferred
        }
    }
}

/// Micro-batches of a training step on this rank: all, or those of one pass of several.
pub(in crate::train) struct StepWork<'a> {
    pub inputs: &'a [MicroBatchInput],
    /// True if the step ends with them.
    pub ends_step: bool,
    pub forward_step: &'a mut dyn ForwardStep,
    pub gradients: &'a mut GradientBuffer,
    pub reducer: &'a mut GradientReducer,
    pub parameters: &'a mut ShardedParameters,
    /// When reductions start.
    pub reductions: Reductions,
}

impl StepWork<'_> {
    /// A single micro-batch, whose gradients are not reduced during backward.
    pub fn only(&mut self, microbatch: usize) -> StepWork<'_> {
        StepWork {
            inputs: &self.inputs[microbatch..=microbatch],
            ends_step: false,
            forward_step: self.forward_step,
            gradients: self.gradients,
            reducer: self.reducer,
            parameters: self.parameters,
            reductions: Reductions::Deferred,
        }
    }
}

impl MicroBatches for StepWork<'_> {
    fn input(&self, microbatch: usize) -> MicroBatchInput {
        self.inputs[microbatch].clone()
    }

    fn hooks<'h>(&'h mut self, microbatch: usize, chunk: usize, batch: &'h Batch) -> Box<dyn RegionHooks + 'h> {
        // Every schedule takes the micro-batches of a chunk in order.
        let is_last = self.ends_step && microbatch + 1 == self.inputs.len();
        let reduce_now = match self.reductions {
            Reductions::InEachMicroBatch => true,
            Reductions::InLastMicroBatch => is_last,
            Reductions::Deferred => false,
        };
        Box::new(TrainHooks {
            forward_step: self.forward_step,
            batch,
            factor: self.inputs[microbatch].loss_factor,
            gradients: self.gradients,
            reducer: self.reducer,
            parameters: self.parameters,
            chunk,
            reduce_now,
        })
    }
}

impl TrainWork for StepWork<'_> {
    fn gradient(&mut self, name: &str, gradient: Tensor<1>) {
        self.gradients.add(name, gradient);
    }

    fn backward_done(&mut self, _microbatch: usize, chunk: usize) -> Result<(), CommError> {
        self.gradients.flush();
        if !self.parameters.sharding().divides_gradients() {
            return Ok(());
        }
        self.reducer.end_micro_batch(chunk, self.gradients)
    }
}

/// Micro-batches to be evaluated.
pub(in crate::train) struct EvaluationBatches<'a> {
    pub inputs: &'a [MicroBatchInput],
    /// Gathers parameters; `None` if the model has all of them, as a reference or a teacher does.
    pub parameters: Option<&'a mut ShardedParameters>,
}

impl MicroBatches for EvaluationBatches<'_> {
    fn input(&self, microbatch: usize) -> MicroBatchInput {
        self.inputs[microbatch].clone()
    }

    fn hooks<'h>(&'h mut self, _microbatch: usize, chunk: usize, _batch: &'h Batch) -> Box<dyn RegionHooks + 'h> {
        Box::new(EvaluationHooks { parameters: self.parameters.as_deref_mut(), chunk })
    }
}
