//! A run that is set up: the parts of it, each of which owns its things.

use std::sync::Arc;

use bridge_dist::comm::CommError;
use bridge_dist::mesh::ProcessGroups;
use burn::tensor::Device;

use crate::model::ModelChunk;
use crate::resilience::Heartbeat;
use crate::timers::{TimerLevel, Timers};
use crate::train::data::inputs::Inputs;
use crate::train::data::run_data::RunData;
use crate::train::engine::global_state::GlobalState;
use crate::train::reporting::report::{EvaluationReport, StepReport};
use crate::train::step::outputs::Outputs;
use crate::train::step::training::{HeldBytes, Training};
use crate::train::stop::stop_requests::StopRequests;
use crate::train::subsystems::Subsystems;
use crate::train::subsystems::contract::{LoopRequest, RunContext};
use crate::train::unmatched::Unmatched;

/// A run, set up and ready to train. Made by [`setup`](crate::train::setup).
pub struct TrainingRun {
    /// Configuration and progress, which subsystems see.
    pub state: GlobalState,
    /// The ranks of the run, as this one sees them.
    pub(in crate::train) groups: ProcessGroups,
    pub(in crate::train) training: Training,
    pub(in crate::train) inputs: Inputs,
    pub(in crate::train) outputs: Outputs,
    pub(in crate::train) subsystems: Subsystems,
    pub(in crate::train) stop_requests: StopRequests,
    pub(in crate::train) timers: Arc<Timers>,
    /// Heartbeat of this rank.
    pub(in crate::train) heartbeat: Arc<Heartbeat>,
    /// Request of subsystems at evaluations, until the next decision to exit.
    pub(in crate::train) evaluation_request: LoopRequest,
    /// Names in which the model and the loaded checkpoint differ.
    pub(in crate::train) unmatched: Unmatched,
    /// The last evaluation of the validation split.
    pub(in crate::train) last_validation: Option<EvaluationReport>,
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
    pub fn make_parameters_whole(&mut self) -> Result<(), CommError> {
        self.training.make_parameters_whole()
    }

    /// The subsystems, and the context for their calls.
    pub(in crate::train) fn subsystems(&mut self) -> (&mut Subsystems, RunContext<'_>) {
        let context = RunContext {
            state: &self.state,
            groups: &self.groups,
            training: &mut self.training,
            timers: &self.timers,
            reporter: &self.outputs.reporter,
        };
        (&mut self.subsystems, context)
    }

    pub(in crate::train) fn saves(&self) -> bool {
        self.state.config.checkpoint.save.is_some()
    }

    /// Counts a finished step.
    pub(in crate::train) fn advance(&mut self, step: &StepReport) {
        let state = &mut self.state.train_state;
        let batches = &self.training.num_microbatches;
        state.step += 1;
        self.heartbeat.step_done(state.step);
        state.consumed_train_samples += step.batch_size;
        state.skipped_train_samples +=
            batches.current_global_batch_size() - batches.current_running_global_batch_size();
        state.floating_point_operations_so_far += step.flops.unwrap_or(0.0);
    }

    /// Runs a barrier before a phase, if phases are timed and `logger.barrier_with_L1_time` is set.
    /// The time of a rank then excludes waiting for slower ranks.
    pub(in crate::train) fn begin_phase(&self) -> Result<(), CommError> {
        let world = self.groups.world();
        if self.state.config.logger.barrier_with_L1_time && self.timers.run_at(TimerLevel::Phase) && world.size() > 1 {
            world.barrier()?;
        }
        Ok(())
    }
}
