//! A run that is set up: the parts of it, each of which owns its things.

use std::sync::Arc;

use bridge_dist::mesh::ProcessGroups;
use burn::tensor::Device;

use super::TrainError;
use super::data::RunData;
use super::exits::Exits;
use super::inputs::Inputs;
use super::outputs::Outputs;
use super::report::{EvaluationReport, GlobalState, StepReport};
use super::subsystem::{LoopRequest, RunContext};
use super::subsystems::Subsystems;
use super::training::{HeldBytes, Training};
use super::unmatched::Unmatched;
use crate::config::RunConfig;
use crate::model::ModelChunk;
use crate::resilience::Heartbeat;
use crate::timers::{TimerLevel, Timers};

/// A run, set up and ready to train. Made by [`super::setup`].
pub struct TrainingRun {
    /// The configuration.
    pub config: Arc<RunConfig>,
    /// State that subsystems see.
    pub state: GlobalState,
    /// The ranks of the run, as this one sees them.
    pub(super) groups: ProcessGroups,
    pub(super) training: Training,
    pub(super) inputs: Inputs,
    pub(super) outputs: Outputs,
    pub(super) subsystems: Subsystems,
    pub(super) exits: Exits,
    pub(super) timers: Arc<Timers>,
    /// Heartbeat of this rank.
    pub(super) heartbeat: Arc<Heartbeat>,
    /// Requests of subsystems at evaluations since the last check for exits.
    pub(super) asked: LoopRequest,
    /// In what the model and the checkpoint that was loaded differ.
    pub(super) unmatched: Unmatched,
    /// The last evaluation of the validation split.
    pub(super) last_validation: Option<EvaluationReport>,
}

impl std::fmt::Debug for TrainingRun {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TrainingRun").field("state", &self.state.train_state).finish_non_exhaustive()
    }
}

impl TrainingRun {
    /// The model's chunks on this rank.
    pub fn chunks(&self) -> &[Box<dyn ModelChunk>] {
        &self.training.chunks
    }

    /// The device of this rank, with autodiff.
    pub fn device(&self) -> &Device {
        &self.training.device
    }

    /// The data of the run, with its tokenizer.
    pub fn data(&self) -> &RunData {
        &self.inputs.data
    }

    /// Prints a line above the progress bar.
    pub fn note(&self, text: &str) {
        self.outputs.reporter.note(text);
    }

    /// The process groups of this rank.
    pub fn groups(&self) -> &ProcessGroups {
        &self.groups
    }

    /// Bytes that this rank keeps between steps.
    pub fn held_bytes(&self) -> HeldBytes {
        self.training.held_bytes()
    }

    /// The names in which the model and the checkpoint that was loaded differ, where
    /// `checkpoint.dist_ckpt_strictness` compares and allows them.
    pub fn unmatched(&self) -> &Unmatched {
        &self.unmatched
    }

    /// Gives every parameter of [`TrainingRun::chunks`] its value, where ranks keep only parts of
    /// them or updates are still on their way. All ranks call this together.
    ///
    /// # Errors
    /// If ranks cannot communicate.
    pub fn make_parameters_whole(&mut self) -> Result<(), TrainError> {
        self.training.make_parameters_whole()
    }

    /// The subsystems, and what they see.
    pub(super) fn subsystems(&mut self) -> (&mut Subsystems, RunContext<'_>) {
        let context = RunContext {
            state: &self.state,
            groups: &self.groups,
            training: &mut self.training,
            timers: &self.timers,
            reporter: &self.outputs.reporter,
        };
        (&mut self.subsystems, context)
    }

    pub(super) fn saves(&self) -> bool {
        self.config.checkpoint.save.is_some()
    }

    /// Counts a finished step.
    pub(super) fn advance(&mut self, step: &StepReport) {
        let state = &mut self.state.train_state;
        let batches = &self.training.num_microbatches;
        self.exits.step_took(step.seconds);
        state.step += 1;
        self.exits.stop_deadline().done(state.step);
        state.consumed_train_samples += step.batch_size;
        state.skipped_train_samples +=
            batches.current_global_batch_size() - batches.current_running_global_batch_size();
        state.floating_point_operations_so_far += step.flops.unwrap_or(0.0);
    }

    /// Lets all ranks begin a phase together, where phases are timed and
    /// `logger.barrier_with_L1_time` asks for it: a rank's time is then that of its own work, and
    /// not of waiting for the others.
    pub(super) fn begin_phase(&self) -> Result<(), TrainError> {
        let world = self.groups.world();
        if self.config.logger.barrier_with_L1_time && self.timers.run_at(TimerLevel::Phase) && world.size() > 1 {
            world.barrier()?;
        }
        Ok(())
    }
}
