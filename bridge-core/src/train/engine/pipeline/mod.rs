//! Runs one rank's share of a pipeline: the actions of a [`bridge_dist::schedule`] on this rank's
//! chunks, by segments. One executor for every schedule, and for one rank without a pipeline; which
//! schedule, and which layers a stage has, is decided in `settings`.
//!
//! ```text
//! actions of this rank          what happens here
//! RecvActivation(m, chunk)      a request posted ahead is waited for, the next one is posted        [transfers]
//! Forward(m, chunk)             Executor::forward: output without a graph, regions saved for backward
//! SendActivation(m, chunk)      the output leaves while this rank goes on                           [transfers]
//! RecvGradient, Backward        Executor::backward: parameter gradients out, input gradient kept
//! SendGradient(m, chunk)        the input gradient leaves; nothing of (m, chunk) is left
//! ```

mod error;
mod pass;
mod settings;
#[cfg(test)]
mod tests;
mod transfers;
mod work;

use std::sync::Arc;

use bridge_dist::comm::{CommError, Group};
use bridge_dist::schedule::{PipelineShape, ScheduleKind, rank_actions};
use bridge_kernels::offload::Moved;
use burn::tensor::{Device, FloatDType, Tensor};

use crate::config::RunConfig;
use crate::model::{Batch, Boundary, CustomLossCall, ForwardContext, LayerMetrics, Mode, ModelChunk};
use crate::plan::recompute::{GraphCuts, Recompute};
use crate::timers::Timers;
use crate::train::engine::executor::{Executor, RegionHooks};
use crate::train::engine::offload::SegmentOffload;
use crate::train::engine::region_spans::Observers;
use pass::PipelinePass;
use transfers::TransferFormat;

pub use error::PipelineError;
pub use pass::LossSums;
pub(in crate::train) use settings::{build_chunks, forward_pipeline, pipeline};
pub(in crate::train) use work::{EvaluationBatches, Reductions, StepWork};

/// Micro-batches of a pass. Every rank of the pipeline has the same micro-batches.
pub trait MicroBatches {
    /// A micro-batch on the device, and how it passes through the model. Its shape determines the
    /// shapes of the tensors that stages exchange.
    fn input(&self, microbatch: usize) -> MicroBatchInput;

    /// Hooks around the regions of a chunk while a micro-batch passes through it, forward or
    /// backward.
    fn hooks<'h>(&'h mut self, microbatch: usize, chunk: usize, batch: &'h Batch) -> Box<dyn RegionHooks + 'h>;
}

/// Callbacks of the executor in a pass that trains.
pub trait TrainWork: MicroBatches {
    /// A gradient of the parameter `name`, flat, that was deferred: one of several parts that add
    /// up, as those the hooks get.
    fn gradient(&mut self, name: &str, gradient: Tensor<1>);

    /// The backward pass of a micro-batch through a chunk is done: no more parts of its gradients
    /// will come.
    ///
    /// # Errors
    /// If the gradients cannot be sent on.
    fn backward_done(&mut self, _microbatch: usize, _chunk: usize) -> Result<(), CommError> {
        Ok(())
    }
}

/// A micro-batch as chunks see it.
#[derive(Clone, Debug)]
pub struct MicroBatchInput {
    /// Tokens and masks.
    pub batch: Batch,
    /// Training, with the micro-batch's stream of random numbers, or evaluation.
    pub mode: Mode,
    /// Factor of the loss sum before backward.
    pub loss_factor: f64,
    /// See [`crate::model::Auxiliary::gradient_scale`].
    pub auxiliary_scale: f64,
    /// Receiver of the layers' reports; `None` to drop it.
    pub metrics: Option<Arc<LayerMetrics>>,
    /// Loss that the head computes instead of its own.
    pub custom_loss: Option<CustomLossCall>,
}

impl MicroBatchInput {
    /// A micro-batch with unscaled losses, whose layers' reports are dropped.
    pub fn new(batch: Batch, mode: Mode) -> Self {
        Self { batch, mode, loss_factor: 1.0, auxiliary_scale: 1.0, metrics: None, custom_loss: None }
    }

    /// Micro-batches that are evaluated, with the loss of each that replaces the head's own.
    pub(in crate::train) fn evaluated(batches: &[Batch], custom_losses: &[Option<CustomLossCall>]) -> Vec<Self> {
        let input = |(batch, custom_loss): (&Batch, &Option<CustomLossCall>)| Self {
            custom_loss: custom_loss.clone(),
            ..Self::new(batch.clone(), Mode::Evaluate)
        };
        batches.iter().zip(custom_losses).map(input).collect()
    }
}

/// Settings of a pipeline.
#[derive(Clone, Debug)]
pub struct PipelineSettings {
    /// The order of work in training.
    pub schedule: ScheduleKind,
    /// Recompute within each chunk.
    pub recompute: Recompute,
    /// Other cuts of graphs.
    pub cuts: GraphCuts,
    /// Offload of tensors that chunks keep from forward to backward to the host.
    pub offload: Option<SegmentOffload>,
    /// dtype of activations and gradients between stages (`pipeline_dtype`), if not that inside the
    /// model.
    pub wire_dtype: Option<FloatDType>,
}

/// Runs passes of one rank's chunks. Every rank of the pipeline calls the same methods with the
/// same number of micro-batches.
#[derive(Clone, Debug)]
pub struct Pipeline {
    /// The ranks of the pipeline; `rank()` is the stage.
    group: Group,
    /// Executor of each chunk.
    executors: Vec<Executor>,
    schedule: ScheduleKind,
    format: TransferFormat,
    offload: Option<SegmentOffload>,
    timers: Arc<Timers>,
}

impl Pipeline {
    /// An executor for `chunks`, which this rank of `group` holds, on `device`.
    pub fn new(group: Group, chunks: &[Box<dyn ModelChunk>], device: &Device, settings: &PipelineSettings) -> Self {
        let executor = |chunk: &dyn ModelChunk| {
            let executor = Executor::with_cuts(chunk, &settings.recompute, settings.cuts);
            let executor = executor.offloading(settings.offload.clone());
            if settings.schedule.backward_follows_loss() { executor } else { executor.with_last_recomputed() }
        };
        Self {
            group,
            executors: chunks.iter().map(|chunk| executor(chunk.as_ref())).collect(),
            schedule: settings.schedule,
            format: TransferFormat { device: device.clone().without_autodiff(), dtype: settings.wire_dtype },
            offload: settings.offload.clone(),
            timers: Arc::new(Timers::new(None)),
        }
    }

    /// Times the work, sends and waits of training passes, and passes their segments to
    /// `observers`.
    #[must_use]
    pub(in crate::train) fn with_observers(mut self, observers: &Observers) -> Self {
        self.timers = Arc::clone(&observers.timers);
        self.executors = self.executors.into_iter().map(|executor| executor.with_observers(observers)).collect();
        self
    }

    /// Tensors moved to the host so far, if an offload exists.
    pub(in crate::train) fn moved(&self) -> Option<Moved> {
        self.offload.as_ref().map(SegmentOffload::moved)
    }

    /// When the reductions of this rank start.
    pub(in crate::train) fn reductions(&self, config: &RunConfig) -> Reductions {
        Reductions::from_stage(config, self.group.rank(), self.schedule)
    }

    /// Forward and backward of `num_microbatches` micro-batches. Does not wait for the losses: the
    /// device may still be at work.
    ///
    /// # Errors
    /// If the schedule cannot run this number of micro-batches, or ranks fail or disagree.
    pub fn train_async(
        &self,
        chunks: &mut [Box<dyn ModelChunk>],
        num_microbatches: usize,
        work: &mut dyn TrainWork,
    ) -> Result<LossSums, PipelineError> {
        Ok(self.run(self.schedule, chunks, num_microbatches, work)?.0)
    }

    /// Forward of `num_microbatches` micro-batches, without gradients or dropout. Returns the sum
    /// of the masked loss of each on the last stage, and zeros on the others.
    ///
    /// # Errors
    /// If ranks fail or disagree.
    pub fn evaluate(
        &self,
        chunks: &mut [Box<dyn ModelChunk>],
        num_microbatches: usize,
        micro_batches: &mut dyn MicroBatches,
    ) -> Result<Vec<f64>, PipelineError> {
        let mut work = ForwardOnly(micro_batches);
        Ok(self.run(ScheduleKind::ForwardOnly, chunks, num_microbatches, &mut work)?.0.read())
    }

    /// Forward and backward of one micro-batch, by a rank that has the whole model in `chunk`.
    /// Returns the sum of the masked loss, which is not read: all that happens are launches of
    /// kernels.
    ///
    /// # Errors
    /// Errors of `hooks`, and other tensors than the model declares.
    ///
    /// # Panics
    /// If there are several chunks.
    pub(in crate::train) fn micro_batch(
        &self,
        chunk: &mut dyn ModelChunk,
        context: &ForwardContext<'_>,
        hooks: &mut dyn RegionHooks,
    ) -> Result<Tensor<1>, PipelineError> {
        let [executor] = self.executors.as_slice() else { panic!("the model is one chunk") };
        let (saved, output) = executor.forward(chunk, Boundary::default(), context, hooks)?;
        executor.backward(saved, Boundary::default(), chunk, context, hooks)?;
        Ok(output.loss_sum().expect("a whole model ends with its loss"))
    }

    /// Losses of a pass, and the largest number of micro-batches, counted for each chunk, that were
    /// in flight on this rank at once: forward done, backward (weight part included) not.
    fn run(
        &self,
        kind: ScheduleKind,
        chunks: &mut [Box<dyn ModelChunk>],
        num_microbatches: usize,
        work: &mut dyn TrainWork,
    ) -> Result<(LossSums, usize), PipelineError> {
        assert_eq!(chunks.len(), self.executors.len(), "the chunks the executor was made for");
        if num_microbatches == 0 {
            return Ok((LossSums::default(), 0));
        }
        let shape = PipelineShape { num_stages: self.group.size(), num_chunks: chunks.len(), num_microbatches };
        let actions = rank_actions(kind, shape, self.group.rank())?;
        let mut pass = PipelinePass::new(self, kind, shape, chunks, work);
        pass.run(&actions)?;
        let max_in_flight = pass.max_in_flight();
        Ok((pass.into_loss_sums(), max_in_flight))
    }
}

/// Micro-batches of a pass without backward.
struct ForwardOnly<'a>(&'a mut dyn MicroBatches);

impl MicroBatches for ForwardOnly<'_> {
    fn input(&self, microbatch: usize) -> MicroBatchInput {
        self.0.input(microbatch)
    }

    fn hooks<'h>(&'h mut self, microbatch: usize, chunk: usize, batch: &'h Batch) -> Box<dyn RegionHooks + 'h> {
        self.0.hooks(microbatch, chunk, batch)
    }
}

// A forward-only schedule has no backward action, so this is never called.
impl TrainWork for ForwardOnly<'_> {
    fn gradient(&mut self, _name: &str, _gradient: Tensor<1>) {}
}
