//! The training loop.

use std::sync::Arc;

use bridge_kernels::memory::release_unused_memory;

use crate::logging::{Occasion, Split};
use crate::resilience::Section;
use crate::resilience::rerun::ExitDecision;
use crate::timers::Labels;
use crate::train::exit_reason::ExitReason;
use crate::train::reporting::report::StepReport;
use crate::train::resume::checkpointing::save_checkpoint;
use crate::train::run::error::TrainError;
use crate::train::run::evaluate::evaluate_at;
use crate::train::run::exit::checkpoint_and_decide_exit;
use crate::train::run::launch::catch_comm_error;
use crate::train::step::micro_batches::skip_micro_batches;
use crate::train::step::train_step::{StepEnd, train_step};
use crate::train::step::training_run::TrainingRun;
use crate::train::subsystems::contract::LoopRequest;
use crate::train::subsystems::error::SubsystemError;

/// Trains until the configured number of steps, or until something asks to exit. Subsystems are
/// notified of the end, including errors.
///
/// # Errors
/// Data that cannot be read, losses that are not finite (if that is checked), checkpoints
/// that cannot be written, ranks that cannot communicate.
pub fn train(run: &mut TrainingRun) -> Result<ExitReason, TrainError> {
    let end = catch_comm_error(|| {
        let (subsystems, mut context) = run.subsystems();
        subsystems.on_run_start(&mut context)?;
        train_steps(run)
    });
    let (subsystems, mut context) = run.subsystems();
    let end = catch_comm_error(|| subsystems.on_run_end(&mut context, end));
    run.outputs.reporter.training_ends();
    if let Ok(reason) = &end {
        run.note(&reason.to_string());
    }
    end
}

fn train_steps(run: &mut TrainingRun) -> Result<ExitReason, TrainError> {
    if let Some(reason) = run_pending_validation(run)? {
        return Ok(reason);
    }
    let mut end = ExitReason::Completed;
    let timers = Arc::clone(&run.timers);
    let mut is_first = true;
    while run.state.train_state.step < run.state.config.train.train_iters as u64 {
        if let Some(why) = run.subsystems.stop_reason(&run.groups, &run.state)? {
            end = ExitReason::Over(why);
            break;
        }
        run.outputs.poll_saves(&run.state, &run.groups)?;
        update_batch_size(run)?;
        if run.state.config.train.iterations_to_skip.contains(&(run.state.train_state.step as usize + 1)) {
            if let Some(reason) = skip_iteration(run)? {
                return stop_mid_step(run, reason);
            }
            // Skipped iterations still run due saves and exits.
            match checkpoint_and_decide_exit(run, LoopRequest::default())? {
                Some(reason) => return Ok(reason),
                None => continue,
            }
        }
        run.heartbeat.enter(Section::Step);
        let (subsystems, mut context) = run.subsystems();
        subsystems.before_step(&mut context)?;
        let iteration = Some(run.state.train_state.step + 1);
        let _span = timers.span("step", Labels { iteration, ..Labels::default() });
        let mut step = match train_step(run)? {
            StepEnd::Done(step) => step,
            StepEnd::Exit(decision) => return exit_for_rerun(run, decision),
            StepEnd::Stopped(reason) => return stop_mid_step(run, reason),
        };
        run.advance(&step);
        let request = report_step(run, &mut step)?;
        run.heartbeat.enter(Section::OutOfSection);
        if std::mem::take(&mut is_first) {
            // The first step has allocated memory that later steps reuse: states of the optimizer,
            // buffers of the ranks.
            let _span = timers.span("release-unused-memory", Labels::default());
            release_unused_memory();
        }
        if validation_is_due(run) {
            validate(run)?;
        }
        let _ending = timers.span("checkpoint-and-exit", Labels::default());
        if let Some(reason) = checkpoint_and_decide_exit(run, request)? {
            return Ok(reason);
        }
    }
    save_final(run)?;
    Ok(end)
}

/// Saves the step at which training ends, if the run saves and that step has no persistent
/// checkpoint.
pub(in crate::train) fn save_final(run: &mut TrainingRun) -> Result<(), TrainError> {
    let step = run.state.train_state.step;
    if run.saves() && step > 0 && run.outputs.last_saved_step != Some(step) {
        save_checkpoint(run)?;
    }
    Ok(())
}

/// Reports a step that is counted, with the figures of subsystems, and returns their requests.
fn report_step(run: &mut TrainingRun, step: &mut StepReport) -> Result<LoopRequest, SubsystemError> {
    let timers = Arc::clone(&run.timers);
    let spanned = |name| timers.span(name, Labels::default());
    let span = spanned("measure");
    let (subsystems, mut context) = run.subsystems();
    subsystems.measure(&mut context, step)?;
    drop(span);
    let span = spanned("report");
    run.outputs.reporter.step(&run.state, step);
    drop(span);
    let _span = spanned("judge");
    let (subsystems, mut context) = run.subsystems();
    subsystems.after_step(&mut context, step)
}

/// Moves the batch ramp-up on. A change of batch size after the first step is preceded by a
/// checkpoint, so that every checkpoint is followed by steps of one size for a while.
fn update_batch_size(run: &mut TrainingRun) -> Result<(), TrainError> {
    let consumed = run.state.train_state.consumed_train_samples;
    if let Some(change) = run.training.num_microbatches.update(consumed) {
        run.outputs.reporter.note(&format!(
            "batch ramp-up: global batch size {} -> {}",
            change.previous_global_batch_size, change.global_batch_size
        ));
        let grew = change.num_microbatches > change.previous_num_microbatches;
        let step = run.state.train_state.step;
        if grew && step != 0 && run.saves() && run.outputs.last_saved_step != Some(step) {
            save_checkpoint(run)?;
        }
    }
    Ok(())
}

/// Reads and drops the data of an iteration listed in `train.iterations_to_skip` (1-based). Returns
/// the reason if a stop was requested meanwhile.
fn skip_iteration(run: &mut TrainingRun) -> Result<Option<ExitReason>, TrainError> {
    let num_microbatches = run.training.num_microbatches.num_microbatches();
    if let Some(reason) = skip_micro_batches(run, num_microbatches as usize)? {
        return Ok(Some(reason));
    }
    let batch = num_microbatches * run.state.config.samples_per_microstep() as u64;
    let state = &mut run.state.train_state;
    state.step += 1;
    run.heartbeat.step_done(state.step);
    state.consumed_train_samples += batch;
    state.skipped_train_samples += batch;
    run.outputs.reporter.note(&format!("iteration {} skipped, as train.iterations_to_skip asks", state.step));
    Ok(None)
}

/// Ends training in the middle of a step. The step is discarded, and the state before it is saved.
fn stop_mid_step(run: &mut TrainingRun, reason: ExitReason) -> Result<ExitReason, TrainError> {
    let step = run.state.train_state.step;
    run.note(&format!("iteration {} is left unfinished", step + 1));
    save_final(run)?;
    Ok(reason)
}

fn exit_for_rerun(run: &mut TrainingRun, decision: ExitDecision) -> Result<ExitReason, TrainError> {
    match decision {
        ExitDecision::SaveAndExit(code) => {
            if run.saves() {
                save_checkpoint(run)?;
            } else {
                run.note("no checkpoint.save: the step cannot be repeated elsewhere");
            }
            Ok(ExitReason::Rerun(code))
        }
        ExitDecision::Exit(code) => Ok(ExitReason::Rerun(code)),
        ExitDecision::Continue => unreachable!("a step that stops early has a reason to exit"),
    }
}

fn validation_is_due(run: &TrainingRun) -> bool {
    run.state.train_state.do_valid && run.state.config.validation.is_due(run.state.train_state.step)
}

/// Evaluates on the validation split, and notes if that was stopped.
fn validate(run: &mut TrainingRun) -> Result<(), TrainError> {
    let evaluation = evaluate_at(run, Split::Valid, Occasion::DuringTraining)?;
    run.state.train_state.owes_validation = evaluation.is_break();
    Ok(())
}

/// Repeats the validation in which the previous run was stopped, so that later evaluations read the
/// same samples as without the stop. Returns the exit reason if it is stopped again.
pub(in crate::train) fn run_pending_validation(run: &mut TrainingRun) -> Result<Option<ExitReason>, TrainError> {
    if !std::mem::take(&mut run.state.train_state.owes_validation) || !validation_is_due(run) {
        return Ok(None);
    }
    validate(run)?;
    if run.state.train_state.owes_validation {
        checkpoint_and_decide_exit(run, LoopRequest::default())
    } else {
        Ok(None)
    }
}
