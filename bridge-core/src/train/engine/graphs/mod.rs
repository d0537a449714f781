//! Forward and backward of micro-batches as a recorded graph (`model.cuda_graph_impl = "local"`):
//! the kernels of one micro-batch are recorded once and replayed for the others, for which the host
//! launches next to nothing.
//!
//! ```text
//! the first steps          launched as usual; shapes of micro-batches are counted
//! the next micro-batch     run twice for the memory it needs, then recorded: nothing of that counts
//! each micro-batch         copied to the graph's inputs; replay; its loss is copied out
//!   of the usual shape     gradients add up where the graph writes them, and are the step's
//!   of another shape       launched as usual, its gradients added to those
//! each step                parameters that the optimizer moved are copied to the graph's inputs
//! ```
//!
//! Sums are those of steps without graphs, in the same order: losses and parameters have the same
//! bits.

mod batch;
mod gradients;
mod parameters;

use std::collections::BTreeSet;
use std::mem;

use bridge_kernels::Philox;
use bridge_kernels::graph::{KernelGraph, write_into};
use burn::tensor::{DType, Device, Tensor};

use self::batch::{BatchSignature, StaticBatch};
use self::gradients::{GraphHooks, StaticGradients};
use self::parameters::{ParameterAddresses, StaticParameters};
use crate::config::{CudaGraphImpl, RunConfig};
use crate::model::{Batch, ForwardContext, Mode, ModelChunk};
use crate::train::engine::error::EngineError;
use crate::train::engine::forward_step::ForwardStep;
use crate::train::engine::pipeline::{LossSums, MicroBatchInput, Pipeline, StepWork};

/// The graph of a run's micro-batches, and when it is recorded.
pub(in crate::train) struct MicroBatchGraphs {
    device: Device,
    /// Steps left before a micro-batch is recorded.
    warmup_steps: usize,
    /// Micro-batches seen until then, by signature.
    seen: Vec<(BatchSignature, usize)>,
    recorded: Option<RecordedGraph>,
    gradients: StaticGradients,
    /// Parameters that the optimizer does not update where they are.
    moving: BTreeSet<String>,
    /// Micro-batches recorded and replayed since the last [`take_counts`](Self::take_counts).
    counts: GraphCounts,
}

/// Counts of graphs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::train) struct GraphCounts {
    /// Graphs recorded.
    pub recorded: usize,
    /// Micro-batches replayed.
    pub replayed: usize,
    /// Micro-batches launched.
    pub launched: usize,
}

/// A recorded micro-batch.
struct RecordedGraph {
    graph: KernelGraph,
    batch: StaticBatch,
    scalars: Scalars,
    loss: Tensor<1>,
    parameters: StaticParameters,
}

/// Numbers that change from micro-batch to micro-batch, on the device.
struct Scalars {
    device: Device,
    /// Factor of the loss sum.
    factor: DeviceScalar,
    /// Flag that gradients are added to those of earlier micro-batches.
    keeps: DeviceScalar,
}

struct DeviceScalar {
    tensor: Tensor<1>,
    value: f32,
}

impl DeviceScalar {
    fn new(value: f32, device: &Device) -> Self {
        Self { tensor: Tensor::from_data([value], (device, DType::F32)), value }
    }

    fn set(&mut self, value: f32, device: &Device) {
        if self.value.to_bits() != value.to_bits() {
            write_into(&self.tensor, &Self::new(value, device).tensor);
            self.value = value;
        }
    }
}

/// Forward and backward of the micro-batches of `work`, by graphs where there are any. Returns the
/// loss sum of each, not yet read. Fails with errors of [`Pipeline::train_async`], and of devices
/// that record or replay.
pub(in crate::train) fn train(
    graphs: &mut Option<MicroBatchGraphs>,
    pipeline: &Pipeline,
    chunks: &mut [Box<dyn ModelChunk>],
    work: &mut StepWork<'_>,
) -> Result<LossSums, EngineError> {
    match graphs {
        Some(graphs) => graphs.train(pipeline, chunks, work),
        None => Ok(pipeline.train_async(chunks, work.inputs.len(), work)?),
    }
}

impl MicroBatchGraphs {
    /// Graphs of a run, if it asks for them. Fails if `forward_step` cannot be recorded.
    pub fn from_run(
        config: &RunConfig,
        forward_step: &dyn ForwardStep,
        device: &Device,
    ) -> Result<Option<Self>, EngineError> {
        if config.model.cuda_graph_impl == CudaGraphImpl::None {
            return Ok(None);
        }
        if !forward_step.is_recordable() {
            return Err(EngineError::NotRecordable);
        }
        Ok(Some(Self {
            device: device.clone().without_autodiff(),
            warmup_steps: config.model.cuda_graph_warmup_steps,
            seen: Vec::new(),
            recorded: None,
            gradients: StaticGradients::default(),
            moving: BTreeSet::new(),
            counts: GraphCounts::default(),
        }))
    }

    /// Takes the counts since the last call.
    pub fn take_counts(&mut self) -> GraphCounts {
        mem::take(&mut self.counts)
    }

    /// [`train`] on the one chunk of a model.
    fn train(
        &mut self,
        pipeline: &Pipeline,
        chunks: &mut [Box<dyn ModelChunk>],
        work: &mut StepWork<'_>,
    ) -> Result<LossSums, EngineError> {
        if self.warmup_steps > 0 {
            work.inputs.iter().try_for_each(|input| self.count_signature(&input.batch))?;
            self.warmup_steps -= usize::from(work.ends_step);
            self.counts.launched += work.inputs.len();
            return Ok(pipeline.train_async(chunks, work.inputs.len(), work)?);
        }
        work.parameters.wait_for_gathers(chunks)?;
        self.restore_parameters(chunks[0].as_mut());
        let mut losses = LossSums::default();
        let mut are_ours = false;
        let inputs = work.inputs;
        for (index, MicroBatchInput { batch, loss_factor, .. }) in inputs.iter().enumerate() {
            if !self.matches_recorded(batch)? {
                self.counts.launched += 1;
                losses.append(pipeline.train_async(chunks, 1, &mut work.only(index))?);
                are_ours = false;
                continue;
            }
            if self.recorded.is_none() {
                self.recorded = Some(self.record(pipeline, chunks[0].as_mut(), &mut work.only(index))?);
                self.counts.recorded += 1;
            }
            let recorded = self.recorded.as_mut().expect("it was recorded");
            let adds = are_ours || self.gradients.load(work.gradients);
            losses.push(recorded.replay(batch, *loss_factor, adds)?);
            if !are_ours {
                self.gradients.store(work.gradients);
                are_ours = true;
            }
            self.counts.replayed += 1;
        }
        Ok(losses)
    }

    /// Counts a micro-batch by its signature.
    fn count_signature(&mut self, batch: &Batch) -> Result<(), EngineError> {
        let extras = || batch.extras.keys().map(|name| name.to_string()).collect::<Vec<_>>().join(", ");
        let signature =
            BatchSignature::from_batch(batch).ok_or_else(|| EngineError::ExtraTensors { found: extras() })?;
        match self.seen.iter_mut().find(|(seen, _)| *seen == signature) {
            Some((_, count)) => *count += 1,
            None => self.seen.push((signature, 1)),
        }
        Ok(())
    }

    /// True if a micro-batch has the signature that is recorded: the most frequent one of the
    /// warm-up steps, or without these the signature of the first micro-batch.
    fn matches_recorded(&mut self, batch: &Batch) -> Result<bool, EngineError> {
        if self.seen.is_empty() {
            self.count_signature(batch)?;
        }
        let usual = self.seen.iter().max_by_key(|(_, count)| count).map(|(signature, _)| signature);
        Ok(BatchSignature::from_batch(batch).as_ref() == usual)
    }

    /// Moves parameters back to the memory that the graph reads. If one is elsewhere that was
    /// updated in place so far, the graph is dropped.
    fn restore_parameters(&mut self, chunk: &mut dyn ModelChunk) {
        let Some(recorded) = &self.recorded else { return };
        if let ParameterAddresses::Moved(names) = recorded.parameters.restore(chunk) {
            self.moving.extend(names);
            self.recorded = None;
        }
    }

    /// Records the one micro-batch of `work`.
    fn record(
        &mut self,
        pipeline: &Pipeline,
        chunk: &mut dyn ModelChunk,
        work: &mut StepWork<'_>,
    ) -> Result<RecordedGraph, EngineError> {
        let batch = StaticBatch::copy_of(&work.inputs[0].batch);
        let scalars = Scalars {
            factor: DeviceScalar::new(work.inputs[0].loss_factor as f32, &self.device),
            keeps: DeviceScalar::new(0.0, &self.device),
            device: self.device.clone(),
        };
        let always = DeviceScalar::new(1.0, &self.device).tensor;
        let loss = DeviceScalar::new(0.0, &self.device).tensor;
        let parameters = StaticParameters::from_chunk(chunk, &self.moving)?;
        self.gradients.restart(work.gradients.accumulation());
        // There is no dropout.
        let context = ForwardContext::new(batch.batch(), Mode::Train(Philox::new(0)));
        let graph = KernelGraph::record(&loss, &mut || {
            let mut hooks = GraphHooks {
                forward_step: &mut *work.forward_step,
                batch: batch.batch(),
                sums: &mut self.gradients,
                factor: &scalars.factor.tensor,
                keeps: &scalars.keeps.tensor,
                always: &always,
                begun: BTreeSet::new(),
            };
            let sum = pipeline.micro_batch(chunk, &context, &mut hooks)?;
            write_into(&loss, &sum);
            Ok::<_, EngineError>(())
        })?;
        // The graph keeps the other inputs of the kernels in place.
        Ok(RecordedGraph { graph, batch, scalars, loss, parameters })
    }
}

impl RecordedGraph {
    /// Puts a micro-batch through the graph. Its gradients are added to the sums if `adds`;
    /// otherwise they replace the sums. Returns its loss sum.
    fn replay(&mut self, batch: &Batch, factor: f64, adds: bool) -> Result<Tensor<1>, EngineError> {
        self.batch.copy_from(batch);
        let Scalars { device, factor: held_factor, keeps } = &mut self.scalars;
        held_factor.set(factor as f32, device);
        keeps.set(f32::from(adds), device);
        self.graph.replay()?;
        Ok(bridge_kernels::graph::copy_of(&self.loss))
    }
}
