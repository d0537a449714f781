//! The training loop.

use std::path::Path;
use std::time::Duration;

use super::TrainError;
use super::checkpointing::save_checkpoint;
use super::evaluate::{Evaluation, evaluate_at};
use super::exit::{ExitReason, checkpoint_and_decide_exit};
use super::launch::catch_comm_error;
use super::micro_batches::skip_micro_batches;
use super::run::TrainingRun;
use super::step::{StepEnd, StepReport, train_step};
use crate::logging::{Occasion, Split};
use crate::resilience::rerun::ExitDecision;

/// Trains until the configured number of steps, or until something asks to exit. Callbacks learn of the end, whatever it is.
///
/// # Errors
/// Data that cannot be read, losses that are not finite (where that is checked), checkpoints that cannot be written, ranks that cannot
/// communicate.
pub fn train(run: &mut TrainingRun) -> Result<ExitReason, TrainError> {
    run.rerun.align_iteration(run.state.train_state.step);
    run.for_each_callback(|callback, state| callback.on_train_start(state));
    let end = catch_comm_error(|| {
        let reason = train_steps(run)?;
        run.log_remaining_times()?;
        Ok(reason)
    });
    run.reporter.training_ends();
    if let Ok(reason) = &end {
        run.note(&reason.to_string());
    }
    run.for_each_callback(|callback, state| callback.on_train_end(state, end.as_ref()));
    end
}

fn train_steps(run: &mut TrainingRun) -> Result<ExitReason, TrainError> {
    if let Some(reason) = make_up_for_validation(run)? {
        return Ok(reason);
    }
    while run.state.train_state.step < run.config.train.train_iters as u64 {
        run.poll_saves()?;
        update_batch_size(run)?;
        match skip_iteration(run)? {
            Skip::Nothing => {}
            // What is due in an iteration is due whether it trains or not, and so is an exit.
            Skip::Iteration => match checkpoint_and_decide_exit(run)? {
                Some(reason) => return Ok(reason),
                None => continue,
            },
            Skip::Stopped(reason) => return stop_within_step(run, reason),
        }
        let step = match train_step(run)? {
            StepEnd::Done(step) => step,
            StepEnd::Exit(decision) => return exit_for_rerun(run, decision),
            StepEnd::Stopped(reason) => return stop_within_step(run, reason),
        };
        run.advance(&step);
        shorten_timeout(run);
        run.log_step(&step)?;
        run.for_each_callback(|callback, state| callback.on_step_end(state, &step));
        still_learns(run, &step)?;
        if validation_is_due(run) {
            validate(run)?;
        }
        post_training_step_callbacks(run, &step)?;
        if let Some(reason) = checkpoint_and_decide_exit(run)? {
            return Ok(reason);
        }
    }
    if run.saves() && run.state.train_state.step > 0 && run.last_saved_step != Some(run.state.train_state.step) {
        save_checkpoint(run)?;
    }
    Ok(ExitReason::Completed)
}

/// Ends a run that has learned nothing for `train.max_consecutive_skipped_iterations` iterations: it would go on like that for ever. Nothing is
/// saved, so that no good checkpoint has to make room.
fn still_learns(run: &mut TrainingRun, step: &StepReport) -> Result<(), TrainError> {
    let count = run.stall.count(step.learning);
    if count < run.config.train.max_consecutive_skipped_iterations as u64 {
        return Ok(());
    }
    let last_good = run.stall.last_good().filter(|folder| folder.is_dir()).map(Path::to_owned);
    Err(TrainError::NothingLearned { iteration: step.iteration, count, last_good })
}

/// Ranks wait for each other for `dist.distributed_timeout_seconds_after_init`, if that is given, once they have made a step.
fn shorten_timeout(run: &TrainingRun) {
    if let Some(seconds) = run.config.dist.distributed_timeout_seconds_after_init {
        run.groups.world().set_timeout(Duration::from_secs(seconds as u64));
    }
}

/// Moves the batch ramp-up on. A change of batch size after the first step is preceded by a checkpoint, so that every
/// checkpoint is followed by steps of one size for a while.
fn update_batch_size(run: &mut TrainingRun) -> Result<(), TrainError> {
    let consumed = run.state.train_state.consumed_train_samples;
    if let Some(change) = run.num_microbatches.update(consumed) {
        run.reporter.note(&format!(
            "batch ramp-up: global batch size {} -> {}",
            change.previous_global_batch_size, change.global_batch_size
        ));
        let grew = change.num_microbatches > change.previous_num_microbatches;
        let step = run.state.train_state.step;
        if grew && step != 0 && run.saves() && run.last_saved_step != Some(step) {
            save_checkpoint(run)?;
        }
    }
    Ok(())
}

/// What became of an iteration that may be skipped.
enum Skip {
    /// It is to be trained.
    Nothing,
    /// It was skipped.
    Iteration,
    /// A stop was asked for meanwhile.
    Stopped(ExitReason),
}

/// Reads and drops the data of an iteration listed in `train.iterations_to_skip` (1-based).
fn skip_iteration(run: &mut TrainingRun) -> Result<Skip, TrainError> {
    let next = run.state.train_state.step as usize + 1;
    if !run.config.train.iterations_to_skip.contains(&next) {
        return Ok(Skip::Nothing);
    }
    let num_microbatches = run.num_microbatches.num_microbatches();
    if let Some(reason) = skip_micro_batches(run, num_microbatches as usize)? {
        return Ok(Skip::Stopped(reason));
    }
    let batch = num_microbatches * run.config.samples_per_microstep() as u64;
    let state = &mut run.state.train_state;
    state.step += 1;
    state.consumed_train_samples += batch;
    state.skipped_train_samples += batch;
    run.rerun.align_iteration(state.step);
    run.reporter.note(&format!("iteration {next} skipped, as train.iterations_to_skip asks"));
    Ok(Skip::Iteration)
}

/// Ends training in the middle of a step, of which nothing stays: what is saved is the state before it.
fn stop_within_step(run: &mut TrainingRun, reason: ExitReason) -> Result<ExitReason, TrainError> {
    let step = run.state.train_state.step;
    run.note(&format!("iteration {} is left unfinished", step + 1));
    if run.saves() && step > 0 && run.last_saved_step != Some(step) {
        save_checkpoint(run)?;
    }
    Ok(reason)
}

fn exit_for_rerun(run: &mut TrainingRun, decision: ExitDecision) -> Result<ExitReason, TrainError> {
    match decision {
        ExitDecision::SaveAndExit(code) => {
            if run.saves() {
                save_checkpoint(run)?;
            }
            Ok(ExitReason::Rerun(code))
        }
        ExitDecision::Exit(code) => Ok(ExitReason::Rerun(code)),
        ExitDecision::Continue => unreachable!("a step that stops early has a reason to exit"),
    }
}

fn validation_is_due(run: &TrainingRun) -> bool {
    let step = run.state.train_state.step as usize;
    let validation = &run.config.validation;
    run.state.train_state.do_valid
        && validation.eval_interval.is_some_and(|interval| step.is_multiple_of(interval))
        && validation.start_eval_at_iter.is_none_or(|start| step >= start)
}

/// Evaluates on the validation split, and notes if that was stopped.
fn validate(run: &mut TrainingRun) -> Result<(), TrainError> {
    let evaluation = evaluate_at(run, Split::Valid, Occasion::DuringTraining)?;
    run.state.train_state.owes_validation = matches!(evaluation, Evaluation::Stopped(_));
    Ok(())
}

/// Does what the run before was stopped in, so that later evaluations read the samples that they would have read; the reason to exit if it
/// is stopped again.
pub(super) fn make_up_for_validation(run: &mut TrainingRun) -> Result<Option<ExitReason>, TrainError> {
    if !std::mem::take(&mut run.state.train_state.owes_validation) || !validation_is_due(run) {
        return Ok(None);
    }
    validate(run)?;
    if run.state.train_state.owes_validation { checkpoint_and_decide_exit(run) } else { Ok(None) }
}

/// What happens after every step besides logging and saving.
fn post_training_step_callbacks(run: &mut TrainingRun, step: &StepReport) -> Result<(), TrainError> {
    let due = |interval: Option<usize>| interval.is_some_and(|n| step.iteration.is_multiple_of(n as u64));
    if due(run.config.train.train_sync_interval) {
        run.device.sync().map_err(|error| TrainError::Device(format!("{error:?}")))?;
    }
    Ok(())
}
