//! One training step: forward and backward of every micro-batch, then the optimizer.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Instant;

use bridge_kernels::Philox;

use crate::config::FINETUNING;
use crate::logging::Figure;
use crate::model::{ATTENTION_LOGIT, Batch, LayerMetrics, Mode, StepValues, TOKEN_ACCURACY};
use crate::optim::{ReductionTimes, StepOutcome, StepScales};
use crate::resilience::Learning;
use crate::resilience::rerun::{ExitDecision, NextPass};
use crate::schedule::{GradientCheck, GroupRates, GroupSettings};
use crate::timers::{Labels, Span, TimerLevel};
use crate::train::engine::forward_step::{
    ForwardStep, LM_LOSS, Losses, Ratio, add_recorded, add_reported, objective_of,
};
use crate::train::engine::graphs;
use crate::train::engine::pipeline::{LossSums, MicroBatchInput, StepWork};
use crate::train::exit_reason::ExitReason;
use crate::train::ranks::agreement;
use crate::train::ranks::threads::compute;
use crate::train::reporting::report::StepReport;
use crate::train::reporting::routers::{RouterReport, RouterSums};
use crate::train::resume::checkpointing::save_gradients;
use crate::train::step::error::StepError;
use crate::train::step::micro_batches::StepData;
use crate::train::step::predictions::{PredictionSums, loss_name};
use crate::train::step::step_flops::SequenceLengths;
use crate::train::step::training_run::TrainingRun;
use crate::train::subsystems::LocalResults;

/// End of a step.
pub(in crate::train) enum StepEnd {
    /// The step is complete.
    Done(Box<StepReport>),
    /// The rerun state machine ends the process.
    Exit(ExitDecision),
    /// A stop was requested before all micro-batches were done. The step is discarded.
    Stopped(ExitReason),
}

/// Runs one step on the next micro-batches.
pub(in crate::train) fn train_step(run: &mut TrainingRun) -> Result<StepEnd, StepError> {
    let started = Instant::now();
    let num_microbatches = run.training.num_microbatches.num_microbatches() as usize;
    let data = StepData::begin(run, num_microbatches)?;
    let config = Arc::clone(&run.state.config);
    let timers = Arc::clone(&run.timers);
    let mut end = Instant::now();
    let computed = compute(&config, || {
        let computed = compute_step(run, data, started);
        end = Instant::now();
        computed
    });
    // Threads that looked for work notice the end when they run again, which takes a while on a
    // machine that does other things too.
    let (name, labels) = ("release-threads".into(), Labels::default());
    timers.spans().add(Span { name, labels, shapes: None, start: end, end: Instant::now() });
    computed
}

/// Forward, backward and update of a step.
fn compute_step(run: &mut TrainingRun, mut data: StepData, started: Instant) -> Result<StepEnd, StepError> {
    let num_microbatches = data.total() as u64;
    let is_dumped = run.outputs.dumps.wants_residual_gradients(run.state.train_state.step + 1);
    run.training.residual_gradients.begin(is_dumped);
    let mut pass_result = PassResult::default();
    loop {
        match run.subsystems.losses.next_pass(&run.groups)? {
            // Steps draw from counter-based streams, and the data is rewound where it is not all in
            // memory.
            NextPass::Run => match forward_backward(run, &mut data)? {
                ControlFlow::Continue(result) => pass_result = result,
                ControlFlow::Break(reason) => {
                    run.training.gradients.clear();
                    run.training.reducer.clear();
                    return Ok(StepEnd::Stopped(reason));
                }
            },
            NextPass::Done => break,
            NextPass::Exit => return Ok(StepEnd::Exit(run.subsystems.losses.exit_decision())),
        }
    }
    let rates = rates(run);
    let loss_scale = run.training.loss_scaler.scale();
    let grad_norms = match wants_grad_norms(run) {
        true => {
            let unscale = 1.0 / (loss_scale * pass_result.divisor);
            let norms = run.training.optimizer.distribution().norms(&run.training.gradients)?;
            norms.into_iter().map(|(name, norm)| (name, norm * unscale)).collect()
        }
        false => Vec::new(),
    };
    run.training.inspect_gradients(loss_scale, pass_result.divisor);
    save_gradients(run, loss_scale, pass_result.divisor)?;
    let can_fall = run.training.loss_scaler.can_fall();
    let outcome = optimizer_step(run, &rates, &pass_result)?;
    let batch_size = num_microbatches * run.state.config.samples_per_microstep() as u64;
    if outcome.success {
        run.training.scheduler.step(run.state.config.schedule_steps(batch_size));
    }
    let (flops, num_tokens) = flops_and_tokens(run, &data.lengths, batch_size)?;
    let figures = custom_loss_figures(&run.training.custom_loss_figures, &pass_result.losses);
    let learning = learning(&outcome, &pass_result.losses, can_fall);
    Ok(StepEnd::Done(Box::new(StepReport {
        iteration: run.state.train_state.step + 1,
        losses: pass_result.losses,
        objective: pass_result.objective,
        token_accuracy: pass_result.accuracy.map(Ratio::value),
        routers: pass_result.routers,
        predictions: pass_result.predictions,
        own_attention_logits: pass_result.attention_logits,
        learning_rate: rates.base.learning_rate,
        decoupled_learning_rate: rates.decoupled,
        weight_decay: rates.base.weight_decay,
        loss_scale,
        grad_norm: outcome.grad_norm,
        num_zeros: outcome.num_zeros,
        grad_norms,
        params_norm: None,
        figures,
        skipped: !outcome.success,
        learning,
        batch_size,
        num_microbatches,
        flops,
        num_tokens,
        seconds: started.elapsed().as_secs_f64(),
        data_seconds: data.reading.as_secs_f64(),
        own_data_seconds: data.own_reading.as_secs_f64(),
        grads_reduction: pass_result.reduction,
    })))
}

/// Model FLOPs and tokens of a step of `batch_size` samples over all ranks, from the lengths of
/// this rank's sequences.
fn flops_and_tokens(
    run: &mut TrainingRun,
    lengths: &SequenceLengths,
    batch_size: u64,
) -> Result<(Option<f64>, u64), StepError> {
    let flops = &mut run.training.flops;
    if !run.inputs.data.lengths_vary() {
        let of_sequence = flops.for_length(run.state.config.model.seq_length);
        let tokens = lengths.tokens * run.state.config.parallel.data as u64;
        return Ok((of_sequence.map(|flops| flops * batch_size as f64), tokens));
    }
    let own = lengths.flops(flops);
    let mut sums = [own.unwrap_or_default(), lengths.tokens as f64];
    agreement::sum(run.groups.data(), &mut sums)?;
    Ok((own.map(|_| sums[0]), sums[1] as u64))
}

/// Figures that a custom loss has recorded, for `metrics.jsonl`; elsewhere they are among the
/// losses.
fn custom_loss_figures(names: &BTreeSet<&'static str>, losses: &Losses) -> Vec<Figure> {
    let figure = |name: &&'static str| {
        let value = losses.get(*name)?.value();
        let key = name.replace(|c: char| !c.is_ascii_alphanumeric(), "_");
        Some(Figure::new(key, "", "Recorded by the loss of the run", value).file())
    };
    names.iter().filter_map(figure).collect()
}

fn wants_grad_norms(run: &TrainingRun) -> bool {
    let logger = &run.state.config.logger;
    let interval = logger.tensorboard_log_interval as u64;
    logger.log_l2_norm_grad_to_tensorboard && (run.state.train_state.step + 1).is_multiple_of(interval)
}

/// Contribution of a step to learning. A loss scale that `can_fall` may be the only fault of the
/// gradients; a loss is computed without it.
fn learning(outcome: &StepOutcome, losses: &Losses, can_fall: bool) -> Learning {
    let is_not_finite = |loss: &Ratio| loss.denominator > 0.0 && !loss.value().is_finite();
    match outcome.success {
        _ if losses.values().any(is_not_finite) => Learning::Failed,
        true => Learning::Learned,
        // The norm is above `optimizer.grad_norm_skip_threshold`.
        false if outcome.grad_norm.is_finite() => Learning::Learned,
        false if can_fall => Learning::FindingScale,
        false => Learning::Failed,
    }
}

/// Result of the passes over the micro-batches.
#[derive(Default)]
struct PassResult {
    losses: Losses,
    /// Name of the loss that was minimised.
    objective: &'static str,
    /// Share of the counted tokens that the model gets right.
    accuracy: Option<Ratio>,
    routers: Vec<RouterReport>,
    /// Losses of multi-token prediction, by depth.
    predictions: Vec<Ratio>,
    /// Largest attention logit of each layer on this rank.
    attention_logits: BTreeMap<usize, f64>,
    /// Divisor of the accumulated gradients.
    divisor: f64,
    /// Sum of the squares of the gradients that this rank counts.
    local_grad_sq: f64,
    /// Times of the reduction of gradients.
    reduction: ReductionTimes,
}

/// Sums of a pass over its micro-batches so far.
struct PassTotals {
    /// Micro-batches that are done.
    done: usize,
    losses: Losses,
    /// Name of the loss that is minimised.
    objective: &'static str,
    /// Losses of this rank's part of each micro-batch, on the last stage, that were read.
    loss_sums: Vec<f64>,
    /// The losses of the last micro-batches, which the device may still compute, and these.
    unread: Option<(LossSums, Vec<Batch>)>,
    /// Tokens of that part.
    own_tokens: Vec<f64>,
    /// Tokens of each micro-batch over all ranks that share it.
    num_tokens: Vec<f64>,
    routers: RouterSums,
    predictions: PredictionSums,
    /// Tokens that the model gets right.
    accuracy: Ratio,
    attention_logits: BTreeMap<usize, f64>,
    /// Values that layers pass to those of later micro-batches.
    layers: Arc<StepValues>,
}

impl PassTotals {
    /// Before the first micro-batch.
    fn new(run: &TrainingRun) -> Self {
        Self {
            done: 0,
            losses: Losses::new(),
            objective: LM_LOSS,
            loss_sums: Vec::new(),
            unread: None,
            own_tokens: Vec::new(),
            num_tokens: Vec::new(),
            routers: RouterSums::new(&run.state.config, &run.groups),
            predictions: PredictionSums::new(&run.state.config),
            accuracy: Ratio::default(),
            attention_logits: BTreeMap::new(),
            layers: Arc::default(),
        }
    }

    /// Adds the losses of micro-batches.
    fn add_losses(&mut self, loss_sums: Vec<f64>, forward_step: &mut dyn ForwardStep, batches: &[Batch]) {
        add_reported(&mut self.losses, forward_step, self.objective, &loss_sums, batches);
        self.loss_sums.extend(loss_sums);
    }

    /// Adds the layers' metrics of micro-batches.
    fn add_layer_metrics(&mut self, inputs: &[MicroBatchInput]) {
        let metrics = inputs.iter().filter_map(|input| input.metrics.as_ref());
        for (metric, values) in metrics.flat_map(|metrics| metrics.take()) {
            self.routers.add(metric, &values);
            self.predictions.add(metric, &values);
            if let ((TOKEN_ACCURACY, _), [right, counted]) = (metric, values.as_slice()) {
                self.accuracy += Ratio { numerator: *right, denominator: *counted };
            }
            if let (ATTENTION_LOGIT, layer) = metric {
                let largest = self.attention_logits.entry(layer).or_insert(f64::NEG_INFINITY);
                *largest = values.iter().copied().fold(*largest, f64::max);
            }
        }
    }

    /// Validates the losses of this rank, and sums losses and metrics over all ranks.
    fn validate_and_reduce(
        mut self,
        run: &mut TrainingRun,
        local_grad_sq: f64,
        reduction: ReductionTimes,
    ) -> Result<PassResult, StepError> {
        let timers = Arc::clone(&run.timers);
        let _sharing = timers.span("share-losses", Labels::default());
        let local = LocalResults {
            loss_sums: self.loss_sums,
            num_tokens: self.own_tokens,
            gradients: run.training.reducer.take_local_norms(),
            loss_scale: run.training.loss_scaler.scale(),
        };
        run.subsystems.losses.validate(&run.groups, &run.outputs.reporter, &local)?;
        // The accuracy travels with the losses, so that it costs no message of its own.
        let is_counted = run.state.config.dataset.kind == FINETUNING && self.objective == LM_LOSS;
        if is_counted {
            self.losses.insert(TOKEN_ACCURACY.to_owned(), self.accuracy);
        }
        agreement::all_reduce_losses(&run.groups, &mut self.losses)?;
        let accuracy = self.losses.remove(TOKEN_ACCURACY).filter(|ratio| is_counted && ratio.denominator > 0.0);
        let routers = self.routers.all_reduce(&run.groups)?;
        self.losses.extend(routers.losses);
        let predictions = self.predictions.all_reduce(&run.groups)?;
        // If all documents of a step are short, a depth may have no token.
        let counted = (1..).zip(&predictions).filter(|(_, loss)| loss.denominator > 0.0);
        self.losses.extend(counted.map(|(depth, loss)| (loss_name(depth), *loss)));
        let per_token = run.state.config.model.calculate_per_token_loss;
        let divisor = if per_token { self.num_tokens.iter().sum::<f64>().max(1.0) } else { 1.0 };
        Ok(PassResult {
            losses: self.losses,
            objective: self.objective,
            accuracy,
            routers: routers.layers,
            predictions,
            attention_logits: self.attention_logits,
            divisor,
            local_grad_sq,
            reduction,
        })
    }
}

/// Forward and backward of all micro-batches of a step, or why they were stopped.
fn forward_backward(
    run: &mut TrainingRun,
    data: &mut StepData,
) -> Result<ControlFlow<ExitReason, PassResult>, StepError> {
    run.training.gradients.clear();
    run.training.reducer.clear();
    run.training.inspector.restart();
    // Magnitudes of a pass that is made again do not count.
    run.training.chunks.iter().flat_map(|chunk| chunk.delayed_scaling_layers()).for_each(|layer| layer.maxima.forget());
    run.training.residual_gradients.restart();
    run.stop_requests.begin_step();
    let mut totals = PassTotals::new(run);
    while totals.done < data.total() {
        if let Some(reason) = window_pass(run, data, &mut totals)? {
            return Ok(ControlFlow::Break(reason));
        }
    }
    run.begin_phase()?;
    run.training.reducer.finish(&mut run.training.gradients)?;
    let local_grad_sq = read_results(run, &mut totals);
    let reduction = run.training.reducer.take_times();
    run.timers.record("grads-reduce-in-flight", TimerLevel::MicroBatch, reduction.in_flight);
    run.timers.record("grads-reduce-exposed", TimerLevel::MicroBatch, reduction.exposed);
    run.timers.record(
        "params-all-gather-exposed",
        TimerLevel::MicroBatch,
        run.training.optimizer.parameters().take_wait_time(),
    );
    totals.validate_and_reduce(run, local_grad_sq, reduction).map(ControlFlow::Continue)
}

/// Reads the losses that were not read and the sum of the squares of what this rank counts of the
/// gradients. A device that computes both is waited for once.
fn read_results(run: &mut TrainingRun, totals: &mut PassTotals) -> f64 {
    let _reading = run.timers.span("read-losses-and-norm", Labels::default());
    let training = &mut run.training;
    let squares = training.optimizer.distribution().squares(&training.gradients);
    let (losses, batches) = totals.unread.take().unwrap_or_default();
    let (squares, loss_sums) = losses.read_with(|losses| squares.finish_with(losses));
    totals.add_losses(loss_sums, training.forward_step.as_mut(), &batches);
    squares.into_iter().sum()
}

/// Forward and backward of the next window of micro-batches, with polls for stop requests. Returns
/// the reason if a stop was requested.
fn window_pass(
    run: &mut TrainingRun,
    data: &mut StepData,
    totals: &mut PassTotals,
) -> Result<Option<ExitReason>, StepError> {
    let timers = Arc::clone(&run.timers);
    let start = totals.done;
    let total = data.total();
    let micro_batches = data.window(run, start)?;
    let preparing = timers.span("prepare-batches", Labels::default());
    let batches: Vec<Batch> = micro_batches.iter().map(|m| run.training.prepare(&run.groups, m)).collect();
    let custom_losses = run.training.losses_of_training(&run.state, &run.groups, &batches)?;
    totals.objective = objective_of(&custom_losses);
    // `num_tokens`: tokens per micro-batch over data and context ranks, the divisor of per-token
    // loss. `sequence_tokens`: over context ranks, the divisor of a per-micro-batch mean, as
    // Megatron does.
    let own_tokens: Vec<f64> = batches.iter().map(|batch| batch.num_tokens).collect();
    let (mut num_tokens, mut sequence_tokens) = (own_tokens.clone(), own_tokens.clone());
    agreement::sum(run.groups.data_context(), &mut num_tokens)?;
    agreement::sum(run.groups.context(), &mut sequence_tokens)?;
    let per_token = run.state.config.model.calculate_per_token_loss;
    let scale = run.training.loss_scaler.scale() * run.training.optimizer.distribution().loss_factor();
    let micro_batches_of_step = (total * run.groups.data().size()) as f64;
    let factor = |tokens: &f64| if per_token { scale } else { scale / (tokens.max(1.0) * micro_batches_of_step) };
    let factors: Vec<f64> = sequence_tokens.iter().map(factor).collect();
    totals.own_tokens.extend(own_tokens);
    totals.num_tokens.extend(num_tokens);
    let step = Philox::new(run.training.seed).derive_name("dropout").derive(run.state.train_state.step + 1);
    drop(preparing);
    if start == 0 {
        run.begin_phase()?;
    }
    let mut done = 0;
    while done < batches.len() {
        let left = batches.len() - done;
        // A repeated pass is not interrupted, because its outcome is the purpose of the repetition.
        let count = if run.subsystems.losses.is_rerunning() {
            left
        } else {
            data.pause(run.stop_requests.micro_batches_until_poll(left), left)
        };
        let pass = done..done + count;
        let timer = timers.start("forward-backward", TimerLevel::Phase);
        run.timers.spans().begin_pass(start + pass.start);
        let input = |index: usize| {
            let metrics = LayerMetrics::of_micro_batch(&totals.layers, start + index);
            let wants_scores = run.state.config.logger.log_max_attention_logit;
            let stream = run.training.dropout_stream(&run.groups, &step, start + index);
            MicroBatchInput {
                loss_factor: factors[index],
                // Auxiliary losses are means: scale them by the micro-batch's tokens.
                auxiliary_scale: factors[index] * sequence_tokens[index],
                metrics: Some(Arc::new(if wants_scores { metrics.with_attention_scores() } else { metrics })),
                custom_loss: custom_losses[index].clone(),
                ..MicroBatchInput::new(batches[index].clone(), Mode::Train(stream))
            }
        };
        let inputs: Vec<MicroBatchInput> = pass.clone().map(input).collect();
        let mut work = StepWork {
            inputs: &inputs,
            ends_step: start + pass.end == total,
            forward_step: run.training.forward_step.as_mut(),
            gradients: &mut run.training.gradients,
            reducer: &mut run.training.reducer,
            parameters: run.training.optimizer.parameters(),
            reductions: run.training.pipeline.reductions(&run.state.config),
        };
        let (graphs, chunks) = (&mut run.training.graphs, &mut run.training.chunks);
        let loss_sums = graphs::train(graphs, &run.training.pipeline, chunks, &mut work)?;
        read_or_defer_losses(run, totals, loss_sums, &batches[pass.clone()], start + pass.end == total);
        drop(timer);
        custom_losses[pass].iter().flatten().for_each(|loss| add_recorded(&mut totals.losses, loss));
        totals.add_layer_metrics(&inputs);
        totals.done += count;
        done += count;
        if start + done < total
            && !run.subsystems.losses.is_rerunning()
            && let Some(reason) = run.stop_requests.poll_within_step(&run.groups, count)?
        {
            return Ok(Some(reason));
        }
    }
    Ok(None)
}

/// Reads the losses of a pass, or defers the read for the last pass of the step, whose losses are
/// read together with the gradient norm.
fn read_or_defer_losses(
    run: &mut TrainingRun,
    totals: &mut PassTotals,
    losses: LossSums,
    batches: &[Batch],
    is_last: bool,
) {
    // Timers need the loss read here, or they would stop before the device is done.
    if is_last && !run.timers.run_at(TimerLevel::Phase) {
        totals.unread = Some((losses, batches.to_vec()));
    } else {
        totals.add_losses(losses.read(), run.training.forward_step.as_mut(), batches);
    }
}

fn optimizer_step(run: &mut TrainingRun, rates: &Rates, pass: &PassResult) -> Result<StepOutcome, StepError> {
    run.begin_phase()?;
    let timer = run.timers.start("optimizer", TimerLevel::Phase);
    let scales = StepScales { loss_scale: run.training.loss_scaler.scale(), divisor: pass.divisor };
    let outcome = run.training.optimizer.step_with_grad_norm_sq(
        pass.local_grad_sq,
        run.training.chunks.as_mut_slice(),
        &mut run.training.gradients,
        &rates.groups,
        scales,
    )?;
    drop(timer);
    if !outcome.grad_norm.is_finite() && run.state.config.ddp.check_for_nan_in_grad {
        return Err(StepError::GradientNotFinite {
            iteration: run.state.train_state.step + 1,
            norm: outcome.grad_norm,
        });
    }
    let check = if outcome.grad_norm.is_finite() { GradientCheck::Finite } else { GradientCheck::Overflow };
    run.training.loss_scaler.update(check);
    Ok(outcome)
}

/// Learning rates and decays of a step.
struct Rates {
    base: GroupRates,
    decoupled: Option<f64>,
    groups: Vec<GroupRates>,
}

fn rates(run: &TrainingRun) -> Rates {
    let (scheduler, optimizer) = (&run.training.scheduler, &run.training.optimizer);
    let groups: Vec<GroupRates> = optimizer.groups().map(|settings| scheduler.values(settings)).collect();
    let decoupled = optimizer.groups().zip(&groups).filter(|(settings, _)| settings.is_decoupled_lr).last();
    Rates {
        base: scheduler.values(&GroupSettings::default()),
        decoupled: decoupled.map(|(_, rates)| rates.learning_rate),
        groups,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::train::engine::forward_step::LM_LOSS;

    #[test]
    fn a_scale_that_can_fall_excuses_gradients_and_nothing_else_does() {
        let outcome = |success: bool| {
            let grad_norm = if success { 1.0 } else { f64::INFINITY };
            StepOutcome { success, grad_norm, num_zeros: None }
        };
        let losses = |numerator, denominator| Losses::from([(LM_LOSS.to_owned(), Ratio { numerator, denominator })]);
        for (success, loss, can_fall, expected) in [
            (true, losses(4.0, 2.0), false, Learning::Learned),
            (true, losses(4.0, 2.0), true, Learning::Learned),
            (false, losses(4.0, 2.0), true, Learning::FindingScale),
            (false, losses(4.0, 2.0), false, Learning::Failed),
            (false, losses(f64::NAN, 2.0), true, Learning::Failed),
            (true, losses(f64::INFINITY, 2.0), false, Learning::Failed),
            // No token counted: there is no loss.
            (true, losses(0.0, 0.0), false, Learning::Learned),
        ] {
            assert_eq!(learning(&outcome(success), &loss, can_fall), expected, "{success} {loss:?} {can_fall}");
        }
        let above_limit = StepOutcome { success: false, grad_norm: 9.0, num_zeros: None };
        assert_eq!(learning(&above_limit, &losses(4.0, 2.0), false), Learning::Learned);
    }
}
