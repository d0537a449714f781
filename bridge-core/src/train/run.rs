//! A run that is set up: model, optimizer, schedules, data, logs and checkpoints in one place.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use bridge_data::{DataLoader, MicroBatch};
use bridge_dist::mesh::ProcessGroups;
use bridge_kernels::Philox;
use burn::tensor::Device;
use bytes::Bytes;

use super::callbacks::{Callback, CancelHandle};
use super::checkpointing::Saver;
use super::data::RunData;
use super::evaluate::EvaluationReport;
use super::forward_step::ForwardStep;
use super::lock::RunLock;
use super::micro_batches::StopLooks;
use super::pipeline::Pipeline;
use super::reporter::{Reporter, StepFigures};
use super::step::StepReport;
use super::{TrainError, ranks};
use crate::checkpoint::{SaveReport, TrainState};
use crate::config::RunConfig;
use crate::logging::{MemoryOfRanks, Occasion, RankTimers, SaveStage, Split, TimerLevel, Timers};
use crate::model::{Batch, ModelChunk};
use crate::optim::{GradientBuffer, GradientReducer, Optimizer};
use crate::resilience::rerun::RerunStateMachine;
use crate::resilience::{LossChecks, SignalWatcher, Stall};
use crate::schedule::{FlopsShape, LossScaler, NumMicrobatchesCalculator, OptimizerParamScheduler};

/// What callbacks see of a run.
#[derive(Clone, Debug)]
pub struct GlobalState {
    /// The configuration.
    pub config: Arc<RunConfig>,
    /// Counters.
    pub train_state: TrainState,
}

/// A run, set up and ready to train. Made by [`super::setup`].
pub struct TrainingRun {
    /// The configuration.
    pub config: Arc<RunConfig>,
    /// What callbacks see.
    pub state: GlobalState,
    pub(super) chunks: Vec<Box<dyn ModelChunk>>,
    pub(super) pipeline: Pipeline,
    pub(super) optimizer: Optimizer,
    pub(super) gradients: GradientBuffer,
    pub(super) reducer: GradientReducer,
    /// The ranks of the run, as this one sees them.
    pub(super) groups: ProcessGroups,
    pub(super) scheduler: OptimizerParamScheduler,
    pub(super) num_microbatches: NumMicrobatchesCalculator,
    pub(super) loss_scaler: LossScaler,
    pub(super) rerun: RerunStateMachine,
    pub(super) loss_checks: LossChecks,
    /// Iterations in a row that the run has learned nothing from.
    pub(super) stall: Stall,
    pub(super) flops: FlopsShape,
    pub(super) forward_step: Box<dyn ForwardStep>,
    pub(super) callbacks: Vec<Box<dyn Callback>>,
    pub(super) device: Device,
    pub(super) data: RunData,
    pub(super) timers: Arc<Timers>,
    pub(super) reporter: Reporter,
    pub(super) saver: Option<Saver>,
    pub(super) tokenizer_files: BTreeMap<String, Bytes>,
    /// Rows of the model's embedding.
    pub(super) padded_vocab_size: usize,
    /// Locks on the run's folders, on rank 0 until the run ends.
    pub(super) lock: Option<RunLock>,
    /// Seed of dropout (and of initial weights, before a checkpoint said otherwise).
    pub(super) seed: u64,
    pub(super) signals: Option<SignalWatcher>,
    pub(super) cancel: CancelHandle,
    /// When this rank looks whether to stop, within a step.
    pub(super) stop_looks: StopLooks,
    /// When the program began.
    pub(super) started: Instant,
    pub(super) last_saved_step: Option<u64>,
    /// The last evaluation of the validation split.
    pub(super) last_validation: Option<EvaluationReport>,
}

/// Bytes of tensors that a rank keeps between steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldBytes {
    /// Parameters; where these are sharded, the ranges that this rank keeps.
    pub parameters: u64,
    /// Moments, momentum and float32 copies of narrower parameters.
    pub optimizer: u64,
}

impl std::fmt::Debug for TrainingRun {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TrainingRun").field("state", &self.state.train_state).finish_non_exhaustive()
    }
}

impl TrainingRun {
    /// The model's chunks on this rank.
    pub fn chunks(&self) -> &[Box<dyn ModelChunk>] {
        &self.chunks
    }

    /// The device of this rank, with autodiff.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The data of the run, with its tokenizer.
    pub fn data(&self) -> &RunData {
        &self.data
    }

    /// Prints a line above the progress bar.
    pub fn note(&self, text: &str) {
        self.reporter.note(text);
    }

    /// The process groups of this rank.
    pub fn groups(&self) -> &ProcessGroups {
        &self.groups
    }

    /// What this rank keeps between steps.
    pub fn held_bytes(&self) -> HeldBytes {
        let (parameters, optimizer) = (self.optimizer.parameter_bytes(&self.chunks), self.optimizer.state_bytes());
        HeldBytes { parameters, optimizer }
    }

    pub(super) fn saves(&self) -> bool {
        self.config.checkpoint.save.is_some()
    }

    pub(super) fn for_each_callback(&mut self, mut f: impl FnMut(&mut dyn Callback, &GlobalState)) {
        for callback in &mut self.callbacks {
            f(callback.as_mut(), &self.state);
        }
    }

    /// The next micro-batches of a step, in order.
    pub(super) fn next_micro_batches(&mut self, count: u64) -> Result<Vec<MicroBatch>, TrainError> {
        let timers = Arc::clone(&self.timers);
        let _timer = timers.start("batch-generator", TimerLevel::MicroBatch);
        let consumed = self.state.train_state.consumed_train_samples;
        let batches = self.data.next_train(count, consumed).and_then(|batches| {
            batches.iter().try_for_each(|batch| self.check_ids(batch))?;
            Ok(batches)
        });
        ranks::agree(&self.groups, "reading training data", batches)
    }

    /// Refuses token ids that the model has no row for.
    pub(super) fn check_ids(&self, micro_batch: &MicroBatch) -> Result<(), TrainError> {
        let known = 0..self.padded_vocab_size as i64;
        let labels = micro_batch.labels.iter().zip(&micro_batch.loss_mask).filter(|(_, mask)| **mask != 0.0);
        let mut ids = micro_batch.tokens.iter().chain(labels.map(|(label, _)| label));
        match ids.find(|id| !known.contains(id)) {
            None => Ok(()),
            Some(id) => Err(TrainError::UnknownToken { id: *id, vocab_size: self.padded_vocab_size }),
        }
    }

    /// Moves the part of a micro-batch that this rank works on to the device.
    pub(super) fn prepare(&mut self, micro_batch: &MicroBatch) -> Batch {
        let context = self.groups.context();
        if context.size() == 1 {
            return self.forward_step.prepare(micro_batch, &self.device);
        }
        let part = micro_batch.context_part(context.rank(), context.size());
        self.forward_step.prepare(&part, &self.device)
    }

    /// Where the dropout masks of a micro-batch come from: data-parallel and context-parallel ranks drop different places.
    pub(super) fn dropout_stream(&self, step: &Philox, micro_batch: usize) -> Philox {
        let stream = step.derive(micro_batch as u64);
        match self.groups.data_context().rank() {
            0 => stream,
            rank => stream.derive_name("data-parallel rank").derive(rank as u64),
        }
    }

    pub(super) fn evaluation_loader(&mut self, split: Split) -> Result<Option<DataLoader>, TrainError> {
        let consumed = match split {
            Split::Valid => self.state.train_state.consumed_valid_samples,
            Split::Test => 0,
        };
        self.data.evaluation(&self.config, split, consumed)
    }

    pub(super) fn evaluation_iterations(&self, split: Split) -> usize {
        let validation = &self.config.validation;
        match split {
            Split::Valid if validation.full_validation => usize::MAX,
            _ => validation.eval_iters,
        }
    }

    /// Bytes of text that a micro-batch's counted labels stand for, if the tokenizer can tell.
    pub(super) fn count_bytes(&self, micro_batch: &MicroBatch) -> Option<u64> {
        self.data.count_bytes(micro_batch)
    }

    pub(super) fn wants_grad_norms(&self) -> bool {
        let interval = self.config.logger.tensorboard_log_interval as u64;
        self.config.logger.log_l2_norm_grad_to_tensorboard && (self.state.train_state.step + 1).is_multiple_of(interval)
    }

    /// Counts a finished step.
    pub(super) fn advance(&mut self, step: &StepReport) {
        let state = &mut self.state.train_state;
        state.step += 1;
        state.consumed_train_samples += step.batch_size;
        state.skipped_train_samples += self.num_microbatches.current_global_batch_size()
            - self.num_microbatches.current_running_global_batch_size();
        state.floating_point_operations_so_far += step.flops;
    }

    pub(super) fn log_step(&mut self, step: &StepReport) -> Result<(), TrainError> {
        let due = self.reporter.due(step.iteration);
        let figures = StepFigures {
            params_norm: due.params_norm.then(|| self.parameter_norm()).transpose()?,
            memory: due.memory.then(|| self.memory_of_ranks()).transpose()?,
            timers: due.interval.then(|| self.take_times()).transpose()?,
        };
        self.reporter.step(&self.state, step, &figures);
        Ok(())
    }

    /// Prints the times since the last report: those of what came after it, such as the last save. All ranks call this together.
    pub(super) fn log_remaining_times(&mut self) -> Result<(), TrainError> {
        if !self.config.logger.skip_train_metrics_log {
            let timers = self.take_times()?;
            self.reporter.remaining_times(&timers);
        }
        Ok(())
    }

    /// The times of all ranks since the last call.
    fn take_times(&self) -> Result<RankTimers, TrainError> {
        Ok(RankTimers::new(&ranks::gather(self.groups.world(), &self.timers.drain())?))
    }

    fn memory_of_ranks(&self) -> Result<MemoryOfRanks, TrainError> {
        let mine = ranks::memory(&self.groups, &self.device);
        Ok(MemoryOfRanks(ranks::gather(self.groups.world(), &mine)?))
    }

    /// Lets all ranks begin a phase together, where phases are timed and `logger.barrier_with_L1_time` asks for it: a rank's time is then
    /// that of its own work, and not of waiting for the others.
    pub(super) fn begin_phase(&self) -> Result<(), TrainError> {
        let world = self.groups.world();
        if self.config.logger.barrier_with_L1_time && self.timers.run_at(TimerLevel::Phase) && world.size() > 1 {
            world.barrier()?;
        }
        Ok(())
    }

    fn parameter_norm(&mut self) -> Result<f64, TrainError> {
        self.settle_parameters()?;
        Ok(self.optimizer.parameter_norm(&self.chunks)?)
    }

    /// Gives every parameter of [`TrainingRun::chunks`] its value, where ranks keep only parts of them or updates are still on their way. All
    /// ranks call this together.
    ///
    /// # Errors
    /// If ranks cannot communicate.
    pub fn make_parameters_whole(&mut self) -> Result<(), TrainError> {
        Ok(self.optimizer.parameters().make_whole(&mut self.chunks)?)
    }

    /// Brings updates that are still on their way to [`TrainingRun::chunks`]. Where ranks keep only parts of parameters, they still do.
    pub(super) fn settle_parameters(&mut self) -> Result<(), TrainError> {
        Ok(self.optimizer.parameters().settle(&mut self.chunks)?)
    }

    pub(super) fn log_evaluation(&mut self, report: &EvaluationReport, occasion: Occasion) {
        self.reporter.evaluation(&self.state, report, occasion);
    }

    pub(super) fn log_save(&mut self, step: u64, stage: SaveStage, report: Option<&SaveReport>) {
        self.reporter.save(&self.state, (stage, step), report);
    }

    /// Collects the outcome of a save in the background, if one has ended.
    pub(super) fn poll_saves(&mut self) -> Result<(), TrainError> {
        if let Some(saver) = &mut self.saver
            && let Some(report) = saver.poll()?
            && ranks::is_first(&self.groups)
        {
            self.reporter.save(&self.state, (SaveStage::Ended, report.iteration), Some(&report));
        }
        Ok(())
    }

    /// Waits for saves and writes what is left to write. The run's folders are free for others then.
    pub(super) fn finish(&mut self) -> Result<(), TrainError> {
        let finished = self.finish_writing();
        self.lock = None;
        finished
    }

    fn finish_writing(&mut self) -> Result<(), TrainError> {
        let saved = self.saver.as_mut().map_or(Ok(None), Saver::finish);
        if let Ok(Some(report)) = &saved
            && ranks::is_first(&self.groups)
        {
            self.reporter.save(&self.state, (SaveStage::Ended, report.iteration), Some(report));
        }
        self.reporter.finish(&self.state);
        Ok(saved.map(drop)?)
    }
}
