//! Evaluation on a held-out split.

use std::ops::ControlFlow;
use std::sync::Arc;

use bridge_data::DataLoader;

use crate::config::micro_batch_windows;
use crate::logging::{Occasion, Split};
use crate::model::Batch;
use crate::timers::TimerLevel;
use crate::train::data::error::InputError;
use crate::train::data::run_data::EvaluatedSet;
use crate::train::engine::error::EngineError;
use crate::train::engine::forward_step::{LM_LOSS, Losses, add_recorded, add_reported, objective_of};
use crate::train::engine::pipeline::{EvaluationBatches, MicroBatchInput};
use crate::train::exit_reason::ExitReason;
use crate::train::ranks::agreement;
use crate::train::ranks::threads::compute;
use crate::train::reporting::report::EvaluationReport;
use crate::train::run::error::TrainError;
use crate::train::step::training_run::TrainingRun;

/// Evaluates the model on `validation.eval_iters` batches of a split (all of it with
/// `validation.full_validation`), logs the result and tells the subsystems. `None` when the run has
/// no such data.
///
/// The model's values are untouched: inference copies that share its memory are evaluated. With
/// averages of weights, these are in the place of the weights meanwhile.
///
/// A signal, the cancel handle or `train.exit_duration_in_mins` stops the evaluation, which then
/// returns `None`; the loop exits at its next check.
///
/// # Errors
/// Data that cannot be read; ranks that cannot communicate.
pub fn evaluate(run: &mut TrainingRun, split: Split) -> Result<Option<EvaluationReport>, TrainError> {
    Ok(evaluate_at(run, split, Occasion::DuringTraining)?.continue_value().flatten())
}

/// Report of an evaluation, `None` if the run has no such data; or the reason why it was stopped.
/// Then there are no figures: those of a part could be mistaken for those of the whole.
pub(in crate::train) type Evaluation = ControlFlow<ExitReason, Option<EvaluationReport>>;

/// [`evaluate`] on an occasion, which the log tells.
pub(in crate::train) fn evaluate_at(
    run: &mut TrainingRun,
    split: Split,
    occasion: Occasion,
) -> Result<Evaluation, TrainError> {
    let consumed = match split {
        Split::Valid => run.state.train_state.consumed_valid_samples,
        Split::Test => 0,
    };
    let sets = run.inputs.data.evaluated(split);
    if sets.is_empty() {
        return Ok(ControlFlow::Continue(None));
    }
    let mut loaders = run.inputs.data.evaluation(&run.state.config, split, &sets, consumed)?;
    let weights = run.training.take_averages()?;
    let found = evaluate_sets(run, split, occasion, &sets, &mut loaders);
    run.training.put_back(weights)?;
    let report = match found? {
        ControlFlow::Continue(report) => report,
        ControlFlow::Break(reason) => return Ok(ControlFlow::Break(reason)),
    };
    if split == Split::Valid {
        run.state.train_state.consumed_valid_samples += report.num_samples;
        run.inputs.data.keep_valid_loaders(&run.state.config, loaders);
    }
    run.outputs.reporter.evaluation(&run.state, &report);
    let (subsystems, mut context) = run.subsystems();
    let request = subsystems.on_evaluation(&mut context, &report)?;
    run.evaluation_request.join(request);
    if split == Split::Valid {
        run.last_validation = Some(report.clone());
    }
    Ok(ControlFlow::Continue(Some(report)))
}

/// Evaluates all sets of a split; if that was stopped, the reason.
fn evaluate_sets(
    run: &mut TrainingRun,
    split: Split,
    occasion: Occasion,
    sets: &[EvaluatedSet],
    loaders: &mut [DataLoader],
) -> Result<ControlFlow<ExitReason, EvaluationReport>, TrainError> {
    let timers = Arc::clone(&run.timers);
    let timer = timers.start("evaluate", TimerLevel::Iteration);
    let (mut losses, mut num_samples, mut num_bytes) = (Losses::new(), 0, Some(0));
    let mut objective = LM_LOSS;
    for (set, loader) in sets.iter().zip(loaders) {
        let found = match run_batches(run, split, loader)? {
            ControlFlow::Continue(totals) => totals,
            ControlFlow::Break(reason) => return Ok(ControlFlow::Break(reason)),
        };
        num_samples += run.inputs.data.samples_in_passes(&run.state.config, split, set, found.num_passes);
        objective = found.objective;
        num_bytes = num_bytes.zip(found.num_bytes).map(|(sum, more)| sum + more);
        for (name, ratio) in found.losses {
            if let Some(set) = &set.name {
                losses.insert(format!("{name} of {set}"), ratio);
            }
            *losses.entry(name).or_default() += ratio;
        }
    }
    drop(timer);
    agreement::all_reduce_losses(&run.groups, &mut losses)?;
    let num_bytes = bytes_of_all_ranks(run, num_bytes)?;
    let bits_per_byte = num_bytes.filter(|bytes| *bytes > 0).and_then(|bytes| {
        let nats = losses.get(LM_LOSS)?.numerator;
        Some(nats / std::f64::consts::LN_2 / bytes as f64)
    });
    let iteration = run.state.train_state.step;
    let report = EvaluationReport { split, occasion, iteration, losses, objective, num_samples, bits_per_byte };
    Ok(ControlFlow::Continue(report))
}

/// Sums over the batches of an evaluation on this rank.
struct Totals {
    losses: Losses,
    /// Name of the loss that the model is judged by.
    objective: &'static str,
    /// Micro-batches.
    num_passes: u64,
    /// Bytes of the text, if each sample knows its own.
    num_bytes: Option<u64>,
}

/// Evaluates the batches of a split; if that was stopped, the reason.
fn run_batches(
    run: &mut TrainingRun,
    split: Split,
    loader: &mut DataLoader,
) -> Result<ControlFlow<ExitReason, Totals>, TrainError> {
    let validation = &run.state.config.validation;
    let iterations = match split {
        Split::Valid if validation.full_validation => usize::MAX,
        _ => validation.eval_iters,
    };
    let num_microbatches = run.state.config.validation.num_microbatches;
    let windows = micro_batch_windows(&run.state.config, run.state.config.validation.eval_micro_batch_size);
    let mut totals = Totals { losses: Losses::new(), objective: LM_LOSS, num_passes: 0, num_bytes: Some(0) };
    for iteration in 0..iterations {
        run.outputs.reporter.evaluating(split, iteration as u64, iterations as u64);
        let mut left = num_microbatches;
        while left > 0 {
            if let Some(reason) = run.stop_requests.poll(&run.state.config, &run.groups)? {
                run.note(&format!("the evaluation on the {} split was stopped: {reason}", split.name()));
                return Ok(ControlFlow::Break(reason));
            }
            let count = windows.next(left);
            if evaluate_window(run, loader, count, &mut totals)? < count {
                return Ok(ControlFlow::Continue(totals));
            }
            left -= count;
        }
    }
    Ok(ControlFlow::Continue(totals))
}

/// Evaluates the next `count` micro-batches, or as many as there are; returns how many there were.
fn evaluate_window(
    run: &mut TrainingRun,
    loader: &mut DataLoader,
    count: usize,
    totals: &mut Totals,
) -> Result<usize, TrainError> {
    let micro_batches = loader.by_ref().take(count).collect::<Result<Vec<_>, _>>().map_err(InputError::from)?;
    if micro_batches.is_empty() {
        return Ok(0);
    }
    micro_batches.iter().try_for_each(|micro_batch| run.inputs.check_ids(micro_batch))?;
    let batches: Vec<Batch> =
        micro_batches.iter().map(|micro_batch| run.training.prepare(&run.groups, micro_batch)).collect();
    let custom_losses = compute(&run.state.config, || run.training.custom_losses(&run.state, &batches))?;
    let inputs = MicroBatchInput::evaluated(&batches, &custom_losses);
    let mut work = EvaluationBatches { inputs: &inputs, parameters: Some(run.training.optimizer.parameters()) };
    let evaluated = compute(&run.state.config, || {
        run.training.pipeline.evaluate(&mut run.training.chunks, batches.len(), &mut work)
    });
    let loss_sums = evaluated.map_err(EngineError::from)?;
    totals.objective = objective_of(&custom_losses);
    add_reported(&mut totals.losses, run.training.forward_step.as_mut(), totals.objective, &loss_sums, &batches);
    custom_losses.iter().flatten().for_each(|loss| add_recorded(&mut totals.losses, loss));
    totals.num_passes += batches.len() as u64;
    if custom_losses.iter().any(Option::is_some) {
        // Bits per byte are those of a model of text.
        totals.num_bytes = None;
    }
    for micro_batch in &micro_batches {
        totals.num_bytes = totals.num_bytes.and_then(|sum| Some(sum + run.inputs.data.count_bytes(micro_batch)?));
    }
    Ok(batches.len())
}

/// Bytes of the samples of all ranks, if each knows its own. Context-parallel ranks count the same
/// samples.
fn bytes_of_all_ranks(run: &TrainingRun, mine: Option<u64>) -> Result<Option<u64>, TrainError> {
    let mut figures = [mine.unwrap_or(0) as f64, f64::from(u8::from(mine.is_none()))];
    agreement::sum(run.groups.data(), &mut figures)?;
    let [bytes, unknown] = figures;
    Ok((unknown == 0.0).then_some(bytes as u64))
}
