//! What a step says: `metrics.jsonl`, TensorBoard, and every `log_interval` a console line.

use super::Reporter;
use crate::logging::{
    HostMemory, IntervalMetrics, IterationMetrics, MetricValue, MetricsRecord, RankTimers, RuntimeReport, StepOutcome,
    TrainingLogLine, report_l2_norm_grad, report_memory, timestamp,
};
use crate::schedule::tflops_per_device;
use crate::train::run::GlobalState;
use crate::train::step::StepReport;
use crate::train::{TrainError, convert};

/// Sums since the last console line.
#[derive(Default)]
pub(super) struct Interval {
    seconds: f64,
    tokens: u64,
    flops_at_start: f64,
}

impl Interval {
    /// An interval that begins when `flops` operations were done.
    pub(super) fn starting_at(flops: f64) -> Self {
        Self { flops_at_start: flops, ..Self::default() }
    }
}

impl Reporter {
    /// Whether a step is the last of those that share a console line.
    pub(in crate::train) fn ends_interval(&self, iteration: u64) -> bool {
        let logger = &self.config.logger;
        !logger.skip_train_metrics_log && iteration.is_multiple_of(logger.log_interval as u64)
    }

    /// Reports a step that `state` already counts. `timers` are those of the interval that the step ends.
    pub(in crate::train) fn step(
        &mut self,
        state: &GlobalState,
        step: &StepReport,
        params_norm: Option<f64>,
        timers: Option<&RankTimers>,
    ) {
        if !self.is_first {
            return;
        }
        let outcome = if step.skipped { StepOutcome::Skipped } else { StepOutcome::Advanced };
        let losses: Vec<(String, f64)> = step.losses.iter().map(|(name, r)| (name.clone(), r.value())).collect();
        self.log.record(outcome, losses.iter().map(|(name, value)| (name.as_str(), *value)));
        self.interval.seconds += step.seconds;
        self.interval.tokens += step.num_tokens;
        self.throughput.push(self.started.elapsed().as_secs_f64(), state.train_state.consumed_train_samples);
        if let Some(bar) = &mut self.bar {
            bar.set_position(step.iteration);
            let loss = step.loss().map(|loss| format!("loss {loss:.4}")).unwrap_or_default();
            bar.set_message(&format!("{loss}, {:.0} tokens/s", step.num_tokens as f64 / step.seconds));
        }
        let logger = &self.config.logger;
        if logger.skip_train_metrics_log {
            return;
        }
        let memory_is_due =
            logger.log_memory_interval.is_some_and(|interval| step.iteration.is_multiple_of(interval as u64));
        let written = self.write_step(state, step, params_norm);
        self.keep_going(step.iteration, written);
        let written = self.log_iteration(state, step, &losses, params_norm);
        self.keep_going(step.iteration, written);
        if let Some(timers) = timers {
            let written = self.log_interval(state, step, params_norm, timers);
            self.keep_going(step.iteration, written);
        }
        if memory_is_due {
            self.note(&memory_line(step.iteration, HostMemory::read()));
        }
    }

    fn write_step(
        &mut self,
        state: &GlobalState,
        step: &StepReport,
        params_norm: Option<f64>,
    ) -> Result<(), TrainError> {
        let Some(file) = &mut self.metrics_file else {
            return Ok(());
        };
        let record = MetricsRecord::new("train", step.iteration)
            .with_some("loss", step.loss())
            .with("learning_rate", step.learning_rate)
            .with_some("decoupled_learning_rate", step.decoupled_learning_rate)
            .with("weight_decay", step.weight_decay)
            .with("grad_norm", step.grad_norm as f32)
            .with_some("params_norm", params_norm)
            .with_some("num_zeros", step.num_zeros)
            .with("loss_scale", step.loss_scale)
            .with("batch_size", step.batch_size)
            .with("consumed_samples", state.train_state.consumed_train_samples)
            .with("skipped", u64::from(step.skipped))
            .with("tokens_per_second", step.num_tokens as f64 / step.seconds)
            .with("seconds", step.seconds)
            .with("data_seconds", step.data_seconds);
        let tokens = tokens_per_expert(step);
        let record = record
            .with_some("tokens_per_expert_min", tokens.map(|(least, _)| least))
            .with_some("tokens_per_expert_max", tokens.map(|(_, most)| most));
        let layers = step.routers.iter().map(|router| (router.layer.to_string(), router.tokens_per_expert.clone()));
        let record = match self.config.model.moe_per_layer_logging {
            true => record.with("tokens_per_expert", MetricValue::Counts(layers.collect())),
            false => record,
        };
        let record = match self.config.parallel.data * self.config.parallel.context {
            1 => record,
            _ => record
                .with("grads_reduce_seconds", step.grads_reduction.in_flight.as_secs_f64())
                .with("grads_reduce_exposed_seconds", step.grads_reduction.exposed.as_secs_f64()),
        };
        file.write(&record).map_err(|e| TrainError::log("metrics.jsonl", e))
    }

    fn log_iteration(
        &mut self,
        state: &GlobalState,
        step: &StepReport,
        losses: &[(String, f64)],
        params_norm: Option<f64>,
    ) -> Result<(), TrainError> {
        if !self.metrics.wants(step.iteration) {
            return Ok(());
        }
        let config = &self.config;
        let conditions = self.metrics.conditions().clone();
        let world_size = config.parallel.world_size as u64;
        let mut metrics = IterationMetrics {
            iteration: step.iteration,
            consumed_samples: state.train_state.consumed_train_samples,
            skipped_samples: state.train_state.skipped_train_samples,
            learning_rate: Some(step.learning_rate),
            decoupled_learning_rate: step.decoupled_learning_rate,
            batch_size: step.batch_size,
            losses: losses.to_vec(),
            loss_scale: step.loss_scale,
            world_size,
            grad_norm: Some(step.grad_norm),
            num_zeros: step.num_zeros,
            params_norm,
            experts: router_metrics(step, config.model.moe_per_layer_logging),
            ..IterationMetrics::default()
        };
        if conditions.throughput {
            metrics.throughput = self.throughput.report(config.model.seq_length as u64, world_size);
        }
        if conditions.memory
            && let Some(memory) = HostMemory::read()
        {
            metrics.memory = report_memory(&memory.statistics(), None);
        }
        if conditions.runtime {
            let report = RuntimeReport {
                start_iteration: self.start_iteration,
                iteration: step.iteration,
                train_iters: config.train.train_iters as u64,
                consumed_samples: state.train_state.consumed_train_samples,
                seq_length: config.model.seq_length as u64,
                elapsed_seconds: self.started.elapsed().as_secs_f64(),
            };
            metrics.runtime = report.metrics(convert::time_unit(config));
        }
        if conditions.l2_norm_grad {
            metrics.l2_norm_grad = report_l2_norm_grad(step.grad_norms.iter().cloned());
        }
        self.metrics.log_iteration(&metrics).map_err(|e| TrainError::log("TensorBoard events", e))
    }

    fn log_interval(
        &mut self,
        state: &GlobalState,
        step: &StepReport,
        params_norm: Option<f64>,
        timers: &RankTimers,
    ) -> Result<(), TrainError> {
        let flops_now = state.train_state.floating_point_operations_so_far;
        let interval = std::mem::replace(&mut self.interval, Interval::starting_at(flops_now));
        let losses = self.log.drain();
        let iterations = losses.total_iterations().max(1);
        let world_size = self.config.parallel.world_size as u64;
        let tflops = tflops_per_device(flops_now - interval.flops_at_start, interval.seconds, world_size);
        let line = TrainingLogLine {
            timestamp: timestamp(),
            iteration: step.iteration,
            train_iters: self.config.train.train_iters as u64,
            consumed_samples: state.train_state.consumed_train_samples,
            skipped_samples: state.train_state.skipped_train_samples,
            tflops_per_device: self.config.logger.log_throughput.then_some(tflops),
            learning_rate: Some(step.learning_rate),
            global_batch_size: step.batch_size,
            loss_scale: step.loss_scale,
            grad_norm: Some(step.grad_norm),
            num_zeros: step.num_zeros,
            params_norm,
            tokens_per_expert: tokens_per_expert(step),
            memory: HostMemory::read(),
            losses,
            ..TrainingLogLine::default()
        }
        .with_pace(interval.tokens, interval.seconds);
        self.print(&line);
        let option = convert::timing_option(&self.config);
        if let Some(text) = timers.format(option, iterations) {
            self.note(text.trim_end());
        }
        let metrics = IntervalMetrics {
            iteration: step.iteration,
            consumed_samples: state.train_state.consumed_train_samples,
            iteration_time: interval.seconds / iterations as f64,
            tflops: tflops * world_size as f64,
            world_size,
            energy: None,
            timers: timers.metrics(option, iterations),
        };
        self.metrics.log_interval(&metrics).map_err(|e| TrainError::log("TensorBoard events", e))
    }
}

/// Tokens of the expert with the fewest and of that with the most, of any layer.
fn tokens_per_expert(step: &StepReport) -> Option<(u64, u64)> {
    let tokens = || step.routers.iter().flat_map(|router| &router.tokens_per_expert).copied();
    tokens().min().zip(tokens().max())
}

/// What TensorBoard shows of routers.
fn router_metrics(step: &StepReport, each_layer: bool) -> Vec<(String, f64)> {
    let range = tokens_per_expert(step).into_iter().flat_map(|(least, most)| {
        [("tokens_per_expert/min".to_owned(), least as f64), ("tokens_per_expert/max".to_owned(), most as f64)]
    });
    let layers =
        step.routers.iter().filter(|_| each_layer).flat_map(|router| {
            let layer = router.layer;
            let losses = router.losses.iter().map(move |(name, value)| (format!("{name}_layer_{layer}"), *value));
            let experts = router.tokens_per_expert.iter().enumerate();
            losses.chain(experts.map(move |(expert, tokens)| {
                (format!("tokens_per_expert_layer_{layer}/expert_{expert}"), *tokens as f64)
            }))
        });
    range.chain(layers).collect()
}

fn memory_line(iteration: u64, memory: Option<HostMemory>) -> String {
    let gib = |bytes: u64| bytes as f64 / (1_u64 << 30) as f64;
    match memory {
        Some(memory) => format!(
            " [iteration {iteration}] memory (GiB): {:.3} (peak {:.3})",
            gib(memory.resident_bytes),
            gib(memory.peak_resident_bytes)
        ),
        None => format!(" [iteration {iteration}] memory: this system does not say"),
    }
}
