//! The records of a run: each figure with its name, its unit and every place where it shows. A new
//! figure is added here, and nowhere else.

use std::sync::Arc;
use std::time::Instant;

use crate::config::RunConfig;
use crate::logging::numbers::{duration, significant, with_prefix};
use crate::logging::tensorboard::PERPLEXITY_SUFFIX;
use crate::logging::{
    Figure, IntervalLosses, MetricValue, Record, RecordKind, RuntimeReport, StepOutcome, ThroughputWindow, TrainingLog,
    perplexity, report_l2_norm_grad, scientific,
};
use crate::schedule::tflops_per_device;
use crate::train::engine::forward_step::{LM_LOSS, Ratio};
use crate::train::engine::global_state::GlobalState;
use crate::train::reporting::report::{EvaluationReport, StepReport, is_reported_every};

use super::perplexity::has_perplexity;

/// Help of the figure `loss`.
const OBJECTIVE: &str = "Loss that is minimised";

/// Sums since the last console line.
#[derive(Default)]
struct Interval {
    seconds: f64,
    tokens: u64,
    flops_at_start: f64,
}

/// Makes records from the reports of steps and evaluations, and keeps the state that figures need
/// between steps.
pub(super) struct Recorder {
    config: Arc<RunConfig>,
    log: TrainingLog,
    throughput: ThroughputWindow,
    interval: Interval,
    started: Instant,
    start_iteration: u64,
    /// Samples trained on by this run: those of iterations that are skipped take no time.
    trained_samples: u64,
    /// Tokens that this process has trained on.
    trained_tokens: u64,
    /// Steps of this run.
    steps: u64,
    /// Samples of a pass over the training data; `None` where it has no passes.
    pub(super) epoch_samples: Option<u64>,
}

impl Recorder {
    pub(super) fn new(config: &Arc<RunConfig>) -> Self {
        Self {
            throughput: ThroughputWindow::new(config.logger.throughput_window_size),
            log: TrainingLog::default(),
            interval: Interval::default(),
            started: Instant::now(),
            start_iteration: 0,
            trained_samples: 0,
            trained_tokens: 0,
            steps: 0,
            epoch_samples: None,
            config: Arc::clone(config),
        }
    }

    /// Training is about to begin: time counts from here.
    pub(super) fn run_starts(&mut self, state: &GlobalState) {
        let flops_at_start = state.train_state.floating_point_operations_so_far;
        self.interval = Interval { flops_at_start, ..Interval::default() };
        self.start_iteration = state.train_state.step;
        self.throughput.push(0.0, 0, 0);
        self.started = Instant::now();
    }

    /// Expected time of the run, once it is known: after the second step of a run that has more,
    /// because the first one warms up.
    pub(super) fn time_expected(&mut self, step: &StepReport) -> Option<String> {
        self.steps += 1;
        let left = (self.config.train.train_iters as u64).saturating_sub(step.iteration);
        (self.steps == 2 && left > 0).then(|| {
            let total = self.started.elapsed().as_secs_f64() + left as f64 * step.seconds;
            format!("time expected: {} for {left} more iterations, evaluations not counted", duration(total))
        })
    }

    /// The record of a step that `state` already counts.
    pub(super) fn step(&mut self, state: &GlobalState, step: &StepReport) -> Record {
        let outcome = if step.skipped { StepOutcome::Skipped } else { StepOutcome::Advanced };
        let losses = || step.losses.iter().map(|(name, ratio)| (name.as_str(), ratio.value()));
        self.log.record(outcome, losses());
        self.interval.seconds += step.seconds;
        self.interval.tokens += step.num_tokens;
        self.trained_samples += step.batch_size;
        self.trained_tokens += step.num_tokens;
        self.throughput.push(self.started.elapsed().as_secs_f64(), self.trained_samples, self.trained_tokens);
        let mut all = self.of_step(state, step);
        all.extend(self.circumstances(state));
        all.extend(routers(step, self.config.model.moe_per_layer_logging));
        all.extend(predictions(step));
        all.extend(self.pace(step));
        all.extend(self.reduction(step));
        all.extend(losses().map(|(name, value)| {
            Figure::new("losses", "", "Each loss by name", value).label("name", name).board(name)
        }));
        all.extend(self.run_time(state, step));
        all.extend(grad_norms(step));
        all.extend(step.figures.iter().cloned());
        let ends_interval = is_reported_every(&self.config, self.config.logger.log_interval, step.iteration);
        if ends_interval {
            let interval = std::mem::take(&mut self.interval);
            self.interval.flops_at_start = state.train_state.floating_point_operations_so_far;
            let losses = self.log.drain();
            all.extend(self.of_interval(state, step, &interval, losses));
        }
        if self.config.logger.skip_train_metrics_log {
            all.iter_mut().for_each(Figure::hide);
        }
        Record {
            kind: RecordKind::Train,
            iteration: step.iteration,
            consumed_samples: state.train_state.consumed_train_samples,
            ends_interval,
            figures: all,
        }
    }

    /// The figures that every step has, in the order of `metrics.jsonl`.
    fn of_step(&self, state: &GlobalState, step: &StepReport) -> Vec<Figure> {
        let logger = &self.config.logger;
        let state = &state.train_state;
        let (learning_rate, grad_norm) = (step.learning_rate, step.grad_norm);
        let loss_scale = Figure::new("loss_scale", "", "Loss scale in force", step.loss_scale)
            .file()
            .line(70, format!("loss scale: {:.1}", step.loss_scale))
            .json(40, "loss_scale");
        [
            step.loss().map(|loss| Figure::new("loss", "", OBJECTIVE, loss).file()),
            Some(
                Figure::new("learning_rate", "", "Learning rate in force", learning_rate)
                    .file()
                    .board("learning-rate")
                    .line(40, format!("learning rate: {}", scientific(learning_rate)))
                    .short(20, 50, format!("lr {:>7}", significant(learning_rate, 3)))
                    .json(90, "learning_rate"),
            ),
            step.decoupled_learning_rate.map(|rate| {
                Figure::new("decoupled_learning_rate", "", "Learning rate of embeddings and output layer", rate)
                    .file()
                    .board_of_steps("decoupled-learning-rate")
            }),
            Some(Figure::new("weight_decay", "", "Weight decay in force", step.weight_decay).file()),
            Some(
                Figure::new("grad_norm", "", "Norm of all gradients before clipping", grad_norm)
                    .file_as(grad_norm as f32)
                    .board("grad-norm")
                    .line(80, format!("grad norm: {grad_norm:.3}"))
                    .short(30, 40, format!("norm {:>4}", significant(grad_norm, 3)))
                    .json(100, "grad_norm"),
            ),
            step.token_accuracy.map(|share| {
                Figure::new("token_accuracy", "", "Share of the counted tokens that the model gets right", share)
                    .file_as(share as f32)
                    .board("token accuracy")
                    .line(65, format!("token accuracy: {share:.4}"))
                    .short(12, 55, format!("acc {:.1}%", 100.0 * share))
                    .json(75, "token_accuracy")
            }),
            step.params_norm.map(|norm| {
                Figure::new("params_norm", "", "Norm of all parameters", norm)
                    .file()
                    .board("params-norm")
                    .line(100, format!("params norm: {norm:.3}"))
                    .short(80, 10, format!("params {}", significant(norm, 5)))
                    .json(110, "params_norm")
            }),
            step.num_zeros.map(|zeros| {
                Figure::new("num_zeros", "", "Zeros among the gradients", zeros)
                    .file()
                    .board("num-zeros")
                    .line(90, format!("num zeros: {zeros}"))
                    .short(81, 8, format!("{} zeros", with_prefix(zeros as f64)))
                    .json(140, "num_zeros")
            }),
            Some(match logger.log_loss_scale_to_tensorboard {
                true => loss_scale.board("loss-scale"),
                false => loss_scale,
            }),
            Some(
                Figure::new("batch_size", "samples", "Samples of the step", step.batch_size)
                    .file()
                    .board("batch-size")
                    .line(50, format!("global batch size: {:5}", step.batch_size))
                    .json(30, "global_batch_size"),
            ),
            Some(
                Figure::new("consumed_samples", "samples", "Samples trained on", state.consumed_train_samples)
                    .counter()
                    .file(),
            ),
            Some(Figure::new("skipped", "", "Whether nothing was updated", u64::from(step.skipped)).file()),
            Some(
                Figure::new("tokens_per_second", "", "Tokens per second", step.num_tokens as f64 / step.seconds).file(),
            ),
            Some(Figure::new("seconds", "seconds", "Time of the step", step.seconds).file()),
            Some(Figure::new("data_seconds", "seconds", "Time spent waiting for data", step.data_seconds).file()),
        ]
        .into_iter()
        .flatten()
        .collect()
    }

    /// Samples left out, ranks, and passes over the data.
    fn circumstances(&self, state: &GlobalState) -> Vec<Figure> {
        let (skipped, world_size) = (state.train_state.skipped_train_samples, self.config.parallel.world_size as u64);
        let mut samples = Figure::new("skipped_samples", "samples", "Samples left out", skipped)
            .counter()
            .json(10, "skipped_samples");
        if skipped > 0 {
            samples =
                samples.board_of_steps("skipped-train-samples").line(10, format!("skipped samples: {skipped:12}"));
        }
        let ranks = Figure::new("world_size", "", "Ranks", world_size);
        let shows_ranks = self.config.logger.log_world_size_to_tensorboard;
        let mut figures = vec![samples, if shows_ranks { ranks.board("world-size") } else { ranks }];
        if let Some(epoch_samples) = self.epoch_samples.filter(|samples| *samples > 0) {
            let epoch = state.train_state.consumed_train_samples as f64 / epoch_samples as f64;
            figures.push(
                Figure::new("epoch", "", "Passes over the training data", epoch)
                    .line(5, format!("epoch: {epoch:.2}"))
                    .json(5, "epoch"),
            );
        }
        figures
    }

    /// Throughput of the step, and over the window, once that is full, with the sizes of the
    /// batches that it is of.
    fn pace(&self, step: &StepReport) -> Vec<Figure> {
        let (config, logger) = (&self.config, &self.config.logger);
        let world_size = config.parallel.world_size as u64;
        let mut figures = Vec::new();
        if let Some(flops) = step.flops
            && (logger.log_throughput || logger.log_throughput_to_tensorboard)
        {
            let tflops = tflops_per_device(flops, step.seconds, world_size);
            figures.push(Figure::new("tflops_per_device", "TFLOP/s", "Model TFLOP/s per device", tflops).file());
        }
        if logger.log_throughput_to_tensorboard {
            let mut rates = self.throughput.report(world_size);
            if !rates.is_empty() {
                rates.push(("throughput/micro_batch_size".to_owned(), config.train.micro_batch_size as f64));
                rates.push(("throughput/global_batch_size".to_owned(), step.batch_size as f64));
            }
            let rates = Figure::on_board("Throughput over a window of steps", "", rates);
            figures.extend(rates.into_iter().map(Figure::file));
        }
        figures
    }

    /// The reduction of gradients over ranks, where there are any to reduce them with.
    fn reduction(&self, step: &StepReport) -> Vec<Figure> {
        if self.config.parallel.data * self.config.parallel.context == 1 {
            return Vec::new();
        }
        let (all, exposed) = (step.grads_reduction.in_flight, step.grads_reduction.exposed);
        let figure =
            |name, help, time: std::time::Duration| Figure::new(name, "seconds", help, time.as_secs_f64()).file();
        vec![
            figure("grads_reduce_seconds", "Time that gradients were on their way", all),
            figure("grads_reduce_exposed_seconds", "Time that was spent waiting for gradients", exposed),
        ]
    }

    fn run_time(&self, state: &GlobalState, step: &StepReport) -> Vec<Figure> {
        let config = &self.config;
        if !config.logger.log_runtime_to_tensorboard {
            return Vec::new();
        }
        let report = RuntimeReport {
            start_iteration: self.start_iteration,
            iteration: step.iteration,
            train_iters: config.train.train_iters as u64,
            consumed_samples: state.train_state.consumed_train_samples,
            seq_length: config.model.seq_length as u64,
            elapsed_seconds: self.started.elapsed().as_secs_f64(),
        };
        Figure::on_board("How far the run is", "", report.metrics(config.logger.runtime_time_unit))
    }

    /// Means over the interval that a step ends.
    fn of_interval(
        &self,
        state: &GlobalState,
        step: &StepReport,
        interval: &Interval,
        losses: IntervalLosses,
    ) -> Vec<Figure> {
        let (logger, world_size) = (&self.config.logger, self.config.parallel.world_size as u64);
        let iterations = losses.total_iterations();
        let figure =
            |name: &'static str, unit, help, value: MetricValue| Figure::new(name, unit, help, value).of_interval();
        let paced = interval.seconds > 0.0 && iterations > 0;
        let seconds = if paced { interval.seconds / iterations as f64 } else { 0.0 };
        let flops = state.train_state.floating_point_operations_so_far - interval.flops_at_start;
        let tflops = step.flops.map(|_| tflops_per_device(flops, interval.seconds, world_size));
        let mut figures = vec![
            figure("elapsed_ms_per_iteration", "", "Mean time of a step", (seconds * 1000.0).into())
                .line(20, format!("elapsed time per iteration (ms): {:.1}", seconds * 1000.0))
                .json(20, "elapsed_ms_per_iteration"),
            figure("skipped_iterations", "", "Steps that updated nothing", losses.skipped_iterations.into())
                .line(110, format!("number of skipped iterations: {:3}", losses.skipped_iterations))
                .short(90, 80, trouble(losses.skipped_iterations, "skipped"))
                .json(50, "skipped_iterations"),
            figure("nan_iterations", "", "Steps with a loss that is not finite", losses.nan_iterations.into())
                .line(120, format!("number of nan iterations: {:3}", losses.nan_iterations))
                .short(91, 75, trouble(losses.nan_iterations, "not finite"))
                .json(60, "nan_iterations"),
        ];
        figures.extend(losses.averages.into_iter().map(|(name, loss)| {
            let mean =
                figure("mean_losses", "", "Mean of each loss over the steps that updated something", loss.into());
            short_loss(mean, &name, step.objective, loss)
                .label("name", name.clone())
                .line(60, format!("{name}: {}", scientific(loss)))
                .json(70, name)
        }));
        if let Some(tflops) = tflops.filter(|_| logger.log_throughput) {
            figures.push(
                figure("interval_tflops_per_device", "TFLOP/s", "Mean model TFLOP/s per device", tflops.into())
                    .line(30, format!("throughput per GPU (TFLOP/s/GPU): {tflops:.1}"))
                    .short(45, 25, format!("{} TFLOP/s", significant(tflops, 3)))
                    .json(80, "tflops_per_device"),
            );
        }
        if paced {
            let tokens = interval.tokens as f64 / interval.seconds;
            let left = (self.config.train.train_iters as u64).saturating_sub(step.iteration) as f64 * interval.seconds
                / iterations as f64;
            figures.push(
                figure("interval_tokens_per_second", "", "Mean of the tokens per second", tokens.into())
                    .line(140, format!("tokens per second: {tokens:.0}"))
                    .short(40, 60, format!("{:>5} tok/s", with_prefix(tokens)))
                    .json(120, "tokens_per_second"),
            );
            figures.push(
                figure("time_left", "seconds", "Time that is left at this pace", left.into())
                    .line(170, format!("time left: {}", duration(left)))
                    .short(60, 70, format!("{} left", duration(left)))
                    .json(130, "seconds_left"),
            );
        }
        if let Some(tflops) = tflops.filter(|_| logger.log_throughput_to_tensorboard) {
            let all = tflops * world_size as f64;
            let of_run = [("throughput/tflops", all), ("throughput/tflops/device", all / world_size.max(1) as f64)];
            figures.extend(Figure::on_board("Model TFLOP/s", "", of_run).into_iter().map(Figure::of_interval));
        }
        if logger.log_timers_to_tensorboard {
            let seconds = interval.seconds / iterations.max(1) as f64;
            figures.push(
                figure("iteration_time", "seconds", "Mean time of a step", seconds.into()).board("iteration-time"),
            );
        }
        figures
    }

    /// The record of an evaluation.
    pub(super) fn evaluation(&self, state: &GlobalState, report: &EvaluationReport) -> Record {
        let logger = &self.config.logger;
        let (split, consumed_samples) = (report.split.name(), state.train_state.consumed_train_samples);
        let mut figures: Vec<Figure> = [
            report.loss().map(|loss| Figure::new("loss", "", OBJECTIVE, loss).file()),
            report.perplexity().map(|value| {
                let perplexity = format!("perplexity {}", significant(value, 5));
                Figure::new("perplexity", "", "Exponential of the cross-entropy", value)
                    .file()
                    .short(20, 50, perplexity)
            }),
            report.bits_per_byte.map(|bits| {
                Figure::new("bits_per_byte", "", "Bits per byte of text", bits)
                    .file()
                    .line(20, format!("bits per byte: {bits:.4}"))
                    .short(30, 60, format!("{} bits per byte", significant(bits, 5)))
            }),
            Some(Figure::new("num_samples", "samples", "Samples of the evaluation", report.num_samples).file()),
            Some(Figure::new("consumed_samples", "samples", "Samples trained on", consumed_samples).counter().file()),
        ]
        .into_iter()
        .flatten()
        .collect();
        if report.losses.len() > 1 {
            let losses = report.losses.iter().map(|(name, ratio)| (name.clone(), ratio.value() as f32));
            let losses = MetricValue::Numbers(losses.collect());
            figures.push(Figure::new("losses", "", "Each loss by name", losses).file());
        }
        for (name, ratio) in &report.losses {
            let loss = ratio.value();
            let has_perplexity = has_perplexity(report.objective, name);
            let exponential = has_perplexity.then(|| format!(" | {name} PPL: {}", scientific(perplexity(loss))));
            let value = scientific(loss);
            figures.push(
                short_loss(Figure::new("losses", "", "Each loss by name", loss), name, report.objective, loss)
                    .label("name", name)
                    .board(format!("{name} {split}"))
                    .line(10, format!("{name} value: {value}{}", exponential.unwrap_or_default())),
            );
            if has_perplexity && logger.log_validation_ppl_to_tensorboard {
                figures.push(
                    Figure::new("perplexities", "", "The exponential of each loss", perplexity(loss))
                        .label("name", name)
                        .board(format!("{name} {split}{PERPLEXITY_SUFFIX}")),
                );
            }
        }
        let kind = RecordKind::Evaluation(report.split, report.occasion);
        Record { kind, iteration: report.iteration, consumed_samples, ends_interval: false, figures }
    }
}

/// A loss in its column of the short line: the one that is minimised first, others after it. All
/// but the model's own are named.
fn short_loss(figure: Figure, name: &str, objective: &str, loss: f64) -> Figure {
    let value = significant(loss, 5);
    if name == LM_LOSS {
        figure.short(10, 90, format!("loss {value:>6}"))
    } else if name == objective {
        figure.short(10, 90, format!("{name} {value:>6}"))
    } else {
        figure.short(11, 20, format!("{name} {value}"))
    }
}

/// The column of steps that went wrong; empty where none did.
fn trouble(count: u64, what: &str) -> String {
    if count > 0 { format!("{count} {what}") } else { String::new() }
}

/// The gradient norm of each parameter, and of all, where they were computed.
fn grad_norms(step: &StepReport) -> Vec<Figure> {
    if step.grad_norms.is_empty() {
        return Vec::new();
    }
    let figure = |(name, norm): (String, f64)| {
        let parameter = name.trim_start_matches("l2_norm/grad/").to_owned();
        Figure::new("l2_norm_grad", "", "Norm of a parameter's gradient", norm)
            .label("parameter", parameter)
            .board(name)
    };
    report_l2_norm_grad(step.grad_norms.iter().cloned()).into_iter().map(figure).collect()
}

/// The losses of multi-token prediction that had a token to predict.
fn predictions(step: &StepReport) -> Vec<Figure> {
    let counted = (1..).zip(&step.predictions).filter(|(_, loss)| loss.denominator > 0.0);
    let figure = |(depth, loss): (usize, &Ratio)| {
        let help = "Loss of a layer of multi-token prediction";
        Figure::new(format!("mtp_{depth}_loss"), "", help, loss.value()).file_as(loss.value() as f32)
    };
    counted.map(figure).collect()
}

/// Figures of the routers of a mixture of experts; `each_layer` adds those of each layer.
fn routers(step: &StepReport, each_layer: bool) -> Vec<Figure> {
    let tokens = || step.routers.iter().flat_map(|router| &router.tokens_per_expert).copied();
    let mut figures = Vec::new();
    if let Some((least, most)) = tokens().min().zip(tokens().max()) {
        figures.push(
            Figure::new("tokens_per_expert_min", "tokens", "Tokens of the expert with the fewest", least)
                .file()
                .board("moe/tokens_per_expert/min")
                .line(130, format!("tokens per expert: {least} to {most}"))
                .short(82, 9, format!("experts {least} to {most}"))
                .json(150, "tokens_per_expert_min"),
        );
        figures.push(
            Figure::new("tokens_per_expert_max", "tokens", "Tokens of the expert with the most", most)
                .file()
                .board("moe/tokens_per_expert/max")
                .json(151, "tokens_per_expert_max"),
        );
    }
    if !each_layer {
        return figures;
    }
    let counts = step.routers.iter().map(|router| (router.layer.to_string(), router.tokens_per_expert.clone()));
    figures.push(
        Figure::new(
            "tokens_per_expert",
            "tokens",
            "Tokens of each expert by layer",
            MetricValue::Counts(counts.collect()),
        )
        .file(),
    );
    for router in &step.routers {
        let layer = router.layer.to_string();
        figures.extend(router.losses.iter().map(|(name, loss)| {
            Figure::new("router_loss", "", "A loss of a layer's router", *loss)
                .label("name", *name)
                .label("layer", layer.clone())
                .board(format!("moe/{name}_layer_{layer}"))
        }));
        figures.extend(router.tokens_per_expert.iter().enumerate().map(|(expert, tokens)| {
            Figure::new("expert_tokens", "tokens", "Tokens of an expert", *tokens)
                .label("layer", layer.clone())
                .label("expert", expert.to_string())
                .board(format!("moe/tokens_per_expert_layer_{layer}/expert_{expert}"))
        }));
    }
    figures
}
