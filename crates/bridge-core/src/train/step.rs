//! One training step: forward and backward of every micro-batch, then the optimizer.

use std::time::Instant;

use bridge_kernels::Philox;
use burn::tensor::Tensor;

use super::forward_step::Losses;
use super::run::TrainingRun;
use super::{LM_LOSS, TrainError};
use crate::data::MicroBatch;
use crate::logging::TimerLevel;
use crate::model::{Auxiliary, ForwardContext, Mode};
use crate::optim::{GroupRates, StepOutcome, StepScales};
use crate::resilience::rerun::{ExitDecision, ForwardBackward, SingleRank};
use crate::schedule::{GradientCheck, GroupOverrides};

/// What one training step did.
#[derive(Clone, Debug)]
pub struct StepReport {
    /// Number of the step, from 1.
    pub iteration: u64,
    /// Losses by name, averaged as [`super::Ratio`] says.
    pub losses: Losses,
    /// Learning rate in force.
    pub learning_rate: f64,
    /// Learning rate of the embeddings and the output layer, if they have one of their own.
    pub decoupled_learning_rate: Option<f64>,
    /// Weight decay in force (before group factors).
    pub weight_decay: f64,
    /// Loss scale in force.
    pub loss_scale: f64,
    /// Global gradient norm before clipping; NaN or infinite when the step was skipped for that.
    pub grad_norm: f64,
    /// Zero entries among the gradients, if counted.
    pub num_zeros: Option<u64>,
    /// Gradient norm of each parameter, if asked for.
    pub grad_norms: Vec<(String, f64)>,
    /// True when the gradients were not finite and nothing was updated.
    pub skipped: bool,
    /// Sequences in the step.
    pub batch_size: u64,
    /// Micro-batches in the step.
    pub num_microbatches: u64,
    /// Tokens in the step, padding included.
    pub num_tokens: u64,
    /// Wall time of the step in seconds, waiting for data included.
    pub seconds: f64,
    /// Seconds of it spent waiting for data.
    pub data_seconds: f64,
}

impl StepReport {
    /// The language-model loss, as it is reported: rounded to float32.
    pub fn loss(&self) -> Option<f32> {
        self.losses.get(LM_LOSS).map(|ratio| ratio.value() as f32)
    }
}

/// How a step ended.
pub(super) enum StepEnd {
    /// Go on.
    Done(Box<StepReport>),
    /// The rerun state machine ends the process.
    Exit(ExitDecision),
}

/// Runs one step on the next micro-batches.
pub(super) fn train_step(run: &mut TrainingRun) -> Result<StepEnd, TrainError> {
    let started = Instant::now();
    let num_microbatches = run.num_microbatches.num_microbatches();
    let micro_batches = run.next_micro_batches(num_microbatches)?;
    let data_seconds = started.elapsed().as_secs_f64();
    let mut pass_result = Pass::default();
    loop {
        let Ok(pass) = run.rerun.next_pass(&mut SingleRank);
        match pass {
            // Steps draw from counter-based streams and keep their micro-batches: there is nothing to rewind.
            pass if pass.runs() => pass_result = forward_backward(run, &micro_batches)?,
            ForwardBackward::Done => break,
            _ => return Ok(StepEnd::Exit(run.rerun.exit_decision())),
        }
    }
    let grad_norms = if run.wants_grad_norms() { run.gradients.norms() } else { Vec::new() };
    let rates = rates(run);
    let loss_scale = run.loss_scaler.scale();
    let outcome = optimizer_step(run, &rates, pass_result.divisor)?;
    let batch_size = num_microbatches * run.config.samples_per_microstep() as u64;
    if outcome.success {
        run.scheduler.step(batch_size);
    }
    Ok(StepEnd::Done(Box::new(StepReport {
        iteration: run.state.train_state.step + 1,
        losses: pass_result.losses,
        learning_rate: rates.base.learning_rate,
        decoupled_learning_rate: rates.decoupled,
        weight_decay: rates.base.weight_decay,
        loss_scale,
        grad_norm: outcome.grad_norm,
        num_zeros: outcome.num_zeros,
        grad_norms,
        skipped: !outcome.success,
        batch_size,
        num_microbatches,
        num_tokens: micro_batches.iter().map(|m| m.tokens.len() as u64).sum(),
        seconds: started.elapsed().as_secs_f64(),
        data_seconds,
    })))
}

/// What the passes over the micro-batches gave.
#[derive(Default)]
struct Pass {
    losses: Losses,
    /// What the accumulated gradients still have to be divided by.
    divisor: f64,
}

fn forward_backward(run: &mut TrainingRun, micro_batches: &[MicroBatch]) -> Result<Pass, TrainError> {
    run.gradients.clear();
    let per_token = run.config.model.calculate_per_token_loss;
    let stream = Philox::new(run.seed).derive_name("dropout").derive(run.state.train_state.step + 1);
    let mut losses = Losses::new();
    let mut total_tokens = 0.0;
    for (index, micro_batch) in micro_batches.iter().enumerate() {
        let batch = run.forward_step.prepare(micro_batch, &run.device);
        let divisor = if per_token { 1.0 } else { batch.num_tokens.max(1.0) * micro_batches.len() as f64 };
        let factor = run.loss_scaler.scale() / divisor;
        // An auxiliary loss is a mean over the micro-batch, where the model's loss is a sum over its tokens.
        let context = ForwardContext {
            batch: &batch,
            mode: Mode::Train(stream.derive(index as u64)),
            auxiliary: Auxiliary { gradient_scale: factor * batch.num_tokens, metrics: None },
        };
        let (forward_step, gradients) = (&mut run.forward_step, &mut run.gradients);
        let timer = run.timers.start("forward-backward", TimerLevel::Phase);
        let loss_sum = run.executor.forward_backward(
            run.chunks[0].as_ref(),
            &context,
            &mut |sum| forward_step.objective(sum, &batch) * factor,
            &mut |name, gradient| gradients.add(name, gradient),
        );
        drop(timer);
        let loss_sum = scalar(loss_sum);
        total_tokens += batch.num_tokens;
        for finding in run.loss_checks.validate(&mut run.rerun, loss_sum / batch.num_tokens.max(1.0))? {
            run.reporter.note(&format!("{finding}"));
        }
        for (name, ratio) in run.forward_step.report(loss_sum, &batch) {
            *losses.entry(name).or_default() += ratio;
        }
    }
    let divisor = if per_token { total_tokens.max(1.0) } else { 1.0 };
    Ok(Pass { losses, divisor })
}

fn optimizer_step(run: &mut TrainingRun, rates: &Rates, divisor: f64) -> Result<StepOutcome, TrainError> {
    let timer = run.timers.start("optimizer", TimerLevel::Phase);
    let scales = StepScales { loss_scale: run.loss_scaler.scale(), divisor };
    let outcome = run.optimizer.step(&mut run.chunks, &mut run.gradients, &rates.groups, scales);
    drop(timer);
    if !outcome.success && run.config.ddp.check_for_nan_in_grad {
        return Err(TrainError::GradientNotFinite {
            iteration: run.state.train_state.step + 1,
            norm: outcome.grad_norm,
        });
    }
    run.loss_scaler.update(if outcome.success { GradientCheck::Finite } else { GradientCheck::Overflow });
    Ok(outcome)
}

/// Learning rates and decays of a step.
struct Rates {
    base: GroupRates,
    decoupled: Option<f64>,
    groups: Vec<GroupRates>,
}

fn rates(run: &TrainingRun) -> Rates {
    let of = |overrides: &GroupOverrides| {
        let values = run.scheduler.values(overrides);
        GroupRates { learning_rate: values.learning_rate, weight_decay: values.weight_decay }
    };
    let mut decoupled = None;
    let groups = run
        .optimizer
        .groups()
        .map(|settings| {
            let rates = of(&GroupOverrides {
                max_lr: settings.max_lr,
                min_lr: settings.min_lr,
                wd_mult: settings.wd_mult,
                ..GroupOverrides::default()
            });
            if settings.is_decoupled_lr {
                decoupled = Some(rates.learning_rate);
            }
            rates
        })
        .collect();
    Rates { base: of(&GroupOverrides::default()), decoupled, groups }
}

/// The one value of a `[1]` tensor.
pub(super) fn scalar(tensor: Tensor<1>) -> f64 {
    tensor.into_data().iter::<f64>().next().expect("a loss has one element")
}
