//! A whole run: set up, train, evaluate, finish.

use std::ops::ControlFlow;

use crate::checkpoint::TrainState;
use crate::config::RunConfig;
use crate::logging::{Ending, Occasion, Split};
use crate::resilience::Section;
use crate::train::exit_reason::ExitReason;
use crate::train::ranks::threads::in_own_pool;
use crate::train::reporting::report::EvaluationReport;
use crate::train::run::error::TrainError;
use crate::train::run::evaluate::{Evaluation, evaluate_at};
use crate::train::run::launch::catch_comm_error;
use crate::train::run::run_options::RunOptions;
use crate::train::run::setup::setup;
use crate::train::run::train_loop::{run_pending_validation, save_final, train};
use crate::train::step::training_run::TrainingRun;
use crate::train::subsystems::begin_memory_history;

/// Result of a run.
#[derive(Debug)]
pub struct RunReport {
    /// Why it ended.
    pub reason: ExitReason,
    /// Progress of the run.
    pub train_state: TrainState,
    /// The last evaluation of the validation split, if there was one at the end.
    pub validation: Option<EvaluationReport>,
    /// The evaluation of the test split, if there was one.
    pub test: Option<EvaluationReport>,
    /// The run, for later use such as sampling. Fully sharded parameters stay sharded: its chunks
    /// hold zeros in their place until all ranks call
    /// [`make_parameters_whole`](TrainingRun::make_parameters_whole).
    pub run: TrainingRun,
}

/// Sets a run up, trains it, and evaluates it on the validation and test splits, in a thread pool
/// of its own unless the caller is in one. All ranks of `options.groups` call this together.
///
/// # Errors
/// Errors of [`setup`], [`train`] and [`evaluate`](crate::train::evaluate); a communication error
/// of any of them. Logs and checkpoints written before the error remain.
pub fn pretrain(config: RunConfig, options: RunOptions) -> Result<RunReport, TrainError> {
    let threads = config.train.num_threads;
    in_own_pool(threads, || pretrain_here(config, options))?
}

fn pretrain_here(config: RunConfig, options: RunOptions) -> Result<RunReport, TrainError> {
    begin_memory_history(&config, options.groups.world().rank());
    let mut run = setup(config, options)?;
    let outcome = catch_comm_error(|| {
        let outcome = train_and_evaluate(&mut run)?;
        run.training.wait_for_parameters()?;
        Ok(outcome)
    });
    if let Err(error) = &outcome {
        run.outputs.reporter.fail(error);
    }
    // Plots may take a while.
    run.heartbeat.enter(Section::Ended);
    // Logs and saves are finished after an error, too; the first error is returned.
    let ending = match &outcome {
        Ok((reason, ..)) if reason.is_end() => Ending::Finished,
        Ok((reason, ..)) => Ending::Stopped(reason.to_string()),
        Err(error) => Ending::Failed(error.to_string()),
    };
    let finished = run.outputs.finish(&run.state, &run.groups, ending);
    run.stop_requests.run_ended();
    let (reason, validation, test) = outcome?;
    finished?;
    Ok(RunReport { reason, train_state: run.state.train_state.clone(), validation, test, run })
}

type Outcome = (ExitReason, Option<EvaluationReport>, Option<EvaluationReport>);

fn train_and_evaluate(run: &mut TrainingRun) -> Result<Outcome, TrainError> {
    let train_iters = run.state.config.train.train_iters as u64;
    let state = &run.state.train_state;
    let reason = if run.state.config.validation.skip_train {
        run.note("skipping training (validation.skip_train)");
        ExitReason::Completed
    } else if state.step >= train_iters {
        let step = state.step;
        run.note(&format!("nothing left to train: {step} of {train_iters} iterations are done"));
        let stopped = run_pending_validation(run)?;
        if run.outputs.from_non_persistent {
            save_final(run)?;
        }
        stopped.unwrap_or(ExitReason::Completed)
    } else {
        train(run)?
    };
    if !reason.is_end() {
        return Ok((reason, None, None));
    }
    let (validation, stopped) = match run.state.train_state.do_valid {
        true => split_end(last_validation(run)?),
        false => (None, None),
    };
    let (test, stopped) = match run.state.train_state.do_test && stopped.is_none() {
        true => split_end(evaluate_at(run, Split::Test, Occasion::AfterTraining)?),
        false => (None, stopped),
    };
    // A time limit that is reached after all work is done is no reason to stop.
    let asked = run.stop_requests.poll_signals(&run.groups, 0.0)?.0.or(stopped);
    if let Some(asked) = &asked {
        run.note(&asked.to_string());
    }
    Ok((asked.unwrap_or(reason), validation, test))
}

/// The result of an evaluation, or the reason for its stop.
fn split_end(evaluation: Evaluation) -> (Option<EvaluationReport>, Option<ExitReason>) {
    match evaluation {
        ControlFlow::Continue(report) => (report, None),
        ControlFlow::Break(reason) => (None, Some(reason)),
    }
}

/// The validation at the end. It reads the batches after those of the validation before, so it says
/// something new even where the last step has been evaluated; only a whole split evaluated again
/// would give the same figures, and is not.
fn last_validation(run: &mut TrainingRun) -> Result<Evaluation, TrainError> {
    let step = run.state.train_state.step;
    let last = run.last_validation.take().filter(|report| report.iteration == step);
    match last.filter(|_| run.state.config.validation.full_validation) {
        Some(report) => Ok(ControlFlow::Continue(Some(report))),
        None => evaluate_at(run, Split::Valid, Occasion::AfterTraining),
    }
}
