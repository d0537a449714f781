//! State of this rank that steps change: the model with its executors, gradients, optimizer and
//! schedules.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bridge_data::MicroBatch;
use bridge_dist::comm::CommError;
use bridge_dist::mesh::ProcessGroups;
use bridge_kernels::Philox;
use burn::tensor::{Device, Tensor};

use crate::inspect::{Inspector, TensorKind};
use crate::model::{Adapter, Batch, CustomLossCall, ModelChunk};
use crate::optim::{GradientBuffer, GradientReducer, Optimizer};
use crate::schedule::{LossScaler, NumMicrobatchesCalculator, OptimizerParamScheduler};
use crate::train::engine::error::EngineError;
use crate::train::engine::forward_step::ForwardStep;
use crate::train::engine::global_state::GlobalState;
use crate::train::engine::graphs::MicroBatchGraphs;
use crate::train::engine::pipeline::{EvaluationBatches, MicroBatchInput, Pipeline};
use crate::train::engine::residual_gradients::ResidualGradients;
use crate::train::engine::residual_stream::numbers;
use crate::train::objectives::distillation::Distillation;
use crate::train::resume::checkpointing::AdapterBase;
use crate::train::step::error::StepError;
use crate::train::step::step_flops::SequenceFlops;

/// The state of training on this rank.
pub(in crate::train) struct Training {
    pub chunks: Vec<Box<dyn ModelChunk>>,
    pub pipeline: Pipeline,
    pub optimizer: Optimizer,
    pub gradients: GradientBuffer,
    pub reducer: GradientReducer,
    pub scheduler: OptimizerParamScheduler,
    pub num_microbatches: NumMicrobatchesCalculator,
    pub loss_scaler: LossScaler,
    /// Graphs of micro-batches, if they are recorded.
    pub graphs: Option<MicroBatchGraphs>,
    /// Model FLOPs of sequences by their length.
    pub flops: SequenceFlops,
    pub forward_step: Box<dyn ForwardStep>,
    pub device: Device,
    /// Takes statistics of tensors, in steps whose tensors are inspected.
    pub inspector: Arc<Inspector>,
    /// Keeps gradients of the residual stream, in steps that save them.
    pub residual_gradients: Arc<ResidualGradients>,
    /// The adapter's base, which checkpoints leave out and name.
    pub base: Option<AdapterBase>,
    /// Names of the figures that custom losses of the forward step record.
    pub custom_loss_figures: BTreeSet<&'static str>,
    /// The model at the start of the run, if the objective compares with it.
    pub reference: Option<Vec<Box<dyn ModelChunk>>>,
    /// The teacher, if the model is distilled from one.
    pub distillation: Option<Distillation>,
    /// Adapter that the model was built with.
    pub adapter: Option<Arc<dyn Adapter>>,
    /// Seed of dropout (and of initial weights, before a checkpoint said otherwise).
    pub seed: u64,
}

/// Bytes of tensors that a rank keeps between steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldBytes {
    /// Parameters; where these are sharded, the ranges that this rank keeps.
    pub parameters: u64,
    /// Moments, momentum and float32 copies of narrower parameters that are on the device.
    pub optimizer: u64,
    /// Bytes in host memory although the device is a GPU: states that
    /// `optimizer.optimizer_cpu_offload` moved, and states of 8 bits and remainders, which are
    /// always there. Zero on a CPU.
    pub host_optimizer: u64,
}

impl Training {
    /// Bytes that this rank keeps between steps.
    pub fn held_bytes(&self) -> HeldBytes {
        let is_cpu = self.device.clone().without_autodiff() == Device::flex();
        let host_optimizer = if is_cpu { 0 } else { self.optimizer.host_state_bytes() };
        let optimizer = self.optimizer.state_bytes() - host_optimizer;
        HeldBytes { parameters: self.optimizer.parameter_bytes(&self.chunks), optimizer, host_optimizer }
    }

    /// Moves the part of a micro-batch that this rank works on to the device.
    pub fn prepare(&mut self, groups: &ProcessGroups, micro_batch: &MicroBatch) -> Batch {
        let context = groups.context();
        if context.size() == 1 {
            return self.forward_step.prepare(micro_batch, &self.device);
        }
        let part = micro_batch.context_part(context.rank(), context.size());
        self.forward_step.prepare(&part, &self.device)
    }

    /// Losses that the head computes for micro-batches of training instead of its own: with a
    /// teacher, the distillation losses, for which the teacher runs first; without one,
    /// [`custom_losses`](Self::custom_losses). All ranks of a pipeline call this together.
    pub fn losses_of_training(
        &mut self,
        state: &GlobalState,
        groups: &ProcessGroups,
        batches: &[Batch],
    ) -> Result<Vec<Option<CustomLossCall>>, StepError> {
        let Some(distillation) = &mut self.distillation else { return self.custom_losses(state, batches) };
        let losses = distillation.losses(groups, batches)?;
        self.note_figures(&losses);
        Ok(losses)
    }

    /// Notes the names of the figures that custom losses record.
    fn note_figures(&mut self, losses: &[Option<CustomLossCall>]) {
        let recorded = losses.iter().flatten().flat_map(CustomLossCall::recorded);
        self.custom_loss_figures.extend(recorded.map(|(name, ..)| name));
    }

    /// Custom losses of the forward step for micro-batches; the reference, if there is one, runs
    /// first. A model with a teacher is evaluated by its own loss. All ranks of a pipeline call
    /// this together.
    pub fn custom_losses(
        &mut self,
        state: &GlobalState,
        batches: &[Batch],
    ) -> Result<Vec<Option<CustomLossCall>>, StepError> {
        if self.distillation.is_some() {
            return Ok(batches.iter().map(|_| None).collect());
        }
        // The reference model runs before the pass: its results for a micro-batch are small.
        if let Some(chunks) = &mut self.reference {
            let of_reference: Vec<_> =
                batches.iter().map(|batch| self.forward_step.reference_loss(batch).map(CustomLossCall::new)).collect();
            let inputs = MicroBatchInput::evaluated(batches, &of_reference);
            let mut work = EvaluationBatches { inputs: &inputs, parameters: None };
            self.pipeline.evaluate(chunks, batches.len(), &mut work).map_err(EngineError::from)?;
        }
        let losses: Vec<_> =
            batches.iter().map(|batch| self.forward_step.custom_loss(state, batch).map(CustomLossCall::new)).collect();
        self.note_figures(&losses);
        let needs_one = self.adapter.as_ref().is_some_and(|adapter| adapter.last_layer().is_some());
        if needs_one && losses.iter().any(Option::is_none) {
            return Err(StepError::NoLoss);
        }
        Ok(losses)
    }

    /// Random stream of the dropout masks of this replica's micro-batch `micro_batch`: that of the
    /// same samples on a single rank, which reads the micro-batches of all replicas one after the
    /// other. Ranks that share a sequence have the same stream.
    pub fn dropout_stream(&self, groups: &ProcessGroups, step: &Philox, micro_batch: usize) -> Philox {
        let replicas = groups.data();
        step.derive((micro_batch * replicas.size() + replicas.rank()) as u64)
    }

    /// Takes statistics of the reduced gradients of parameters, in steps whose tensors are
    /// inspected. These gradients still have the loss scale, and are not yet divided by `divisor`.
    pub fn inspect_gradients(&self, loss_scale: f64, divisor: f64) {
        if !self.inspector.is_on() {
            return;
        }
        let distribution = self.optimizer.distribution();
        let unscale = 1.0 / (loss_scale * divisor);
        self.inspector.scale_gradients(unscale, unscale / distribution.loss_factor());
        distribution.visit_counted(&self.gradients, &mut |name, part| {
            self.inspector.add(name, TensorKind::WeightGradient, || numbers(part));
        });
    }

    /// The norm of all parameters. All ranks call this together.
    pub fn parameter_norm(&mut self) -> Result<f64, CommError> {
        self.wait_for_parameters()?;
        self.optimizer.parameter_norm(&self.chunks)
    }

    /// Waits for updated parameters that are gathered from other ranks. Sharded parameters stay
    /// sharded.
    pub fn wait_for_parameters(&mut self) -> Result<(), CommError> {
        self.optimizer.parameters().wait_for_gathers(&mut self.chunks)
    }

    /// Puts averages of weights in the place of the weights, which are returned, if the model is
    /// evaluated by averages. All ranks call this together.
    pub fn take_averages(&mut self) -> Result<BTreeMap<String, Tensor<1>>, CommError> {
        let averages = self.optimizer.averages();
        self.put_back(averages)
    }

    /// Puts weights back that [`take_averages`](Self::take_averages) returned. All ranks call this
    /// together.
    pub fn put_back(&mut self, weights: BTreeMap<String, Tensor<1>>) -> Result<BTreeMap<String, Tensor<1>>, CommError> {
        match weights.is_empty() {
            true => Ok(weights),
            false => self.optimizer.exchange_weights(&mut self.chunks, weights),
        }
    }

    /// Gives every parameter of the chunks its value. All ranks call this together.
    pub fn make_parameters_whole(&mut self) -> Result<(), CommError> {
        self.optimizer.parameters().make_whole(&mut self.chunks)
    }
}
