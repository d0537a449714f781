//! What a step says: `metrics.jsonl`, TensorBoard, and every `log_interval` a console line.

use super::Reporter;
use crate::logging::{
    IntervalMetrics, IterationMetrics, LogFormat, MemoryOfRanks, MetricValue, MetricsRecord, RankTimers, RuntimeReport,
    StepOutcome, TrainingLogLine, format_memory_report, report_l2_norm_grad, report_memory, timestamp,
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

/// Which figures besides those of the step itself a report of it needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::train) struct Due {
    /// The times of the interval that the step ends.
    pub interval: bool,
    /// The norm of all parameters.
    pub params_norm: bool,
    /// The memory of all ranks.
    pub memory: bool,
}

/// Figures of all ranks for the report of a step, where they are [`Due`].
#[derive(Debug, Default)]
pub(in crate::train) struct StepFigures {
    pub params_norm: Option<f64>,
    pub memory: Option<MemoryOfRanks>,
    pub timers: Option<RankTimers>,
}

impl Reporter {
    /// What the report of a step needs, the same on all ranks.
    pub(in crate::train) fn due(&self, iteration: u64) -> Due {
        let logger = &self.config.logger;
        let every = |interval: usize| !logger.skip_train_metrics_log && iteration.is_multiple_of(interval as u64);
        let (interval, metrics) = (every(logger.log_interval), every(logger.tensorboard_log_interval));
        Due {
            interval,
            params_norm: logger.log_params_norm && (interval || metrics),
            memory: interval
                || logger.log_memory_to_tensorboard && metrics
                || logger.log_memory_interval.is_some_and(every),
        }
    }

    /// Prints the times of what came after the last console line.
    pub(in crate::train) fn remaining_times(&mut self, timers: &RankTimers) {
        let iterations = self.log.drain().total_iterations();
        if let Some(text) = timers.format(convert::timing_option(&self.config), iterations) {
            self.note(text.trim_end());
        }
    }

    /// Reports a step that `state` already counts.
    pub(in crate::train) fn step(&mut self, state: &GlobalState, step: &StepReport, figures: &StepFigures) {
        if !self.is_first {
            return;
        }
        let outcome = if step.skipped { StepOutcome::Skipped } else { StepOutcome::Advanced };
        let losses: Vec<(String, f64)> = step.losses.iter().map(|(name, r)| (name.clone(), r.value())).collect();
        self.log.record(outcome, losses.iter().map(|(name, value)| (name.as_str(), *value)));
        self.interval.seconds += step.seconds;
        self.interval.tokens += step.num_tokens;
        self.trained_samples += step.batch_size;
        self.throughput.push(self.started.elapsed().as_secs_f64(), self.trained_samples);
        if let Some(bar) = &mut self.bar {
            bar.set_position(step.iteration);
            let loss = step.loss().map(|loss| format!("loss {loss:.4}")).unwrap_or_default();
            bar.set_message(&format!("{loss}, {:.0} tokens/s", step.num_tokens as f64 / step.seconds));
        }
        let logger = &self.config.logger;
        if logger.skip_train_metrics_log {
            return;
        }
        let written = self.write_step(state, step, figures);
        self.keep_going(step.iteration, written);
        let written = self.log_iteration(state, step, &losses, figures);
        self.keep_going(step.iteration, written);
        if let Some(timers) = &figures.timers {
            let written = self.log_interval(state, step, figures, timers);
            self.keep_going(step.iteration, written);
        }
        if let Some(memory) = &figures.memory {
            self.tell_memory(step.iteration, memory);
        }
    }

    /// Prints lines about memory, where they are due: a line of each rank after the first steps of a run, and what
    /// `logger.log_memory_interval` asks for.
    fn tell_memory(&mut self, iteration: u64, memory: &MemoryOfRanks) {
        let logger = &self.config.logger;
        let asked = logger.log_memory_interval.is_some_and(|interval| iteration.is_multiple_of(interval as u64));
        if asked {
            self.note(&memory_line(iteration, memory));
        }
        let is_first = !std::mem::replace(&mut self.has_told_memory, true);
        let speakers = memory.speakers();
        if is_first || asked && speakers.len() > 1 {
            for (rank, memory) in speakers {
                let metrics = report_memory(&memory.statistics(), None);
                self.note(&format_memory_report(rank, iteration, &metrics));
            }
        }
    }

    fn write_step(&mut self, state: &GlobalState, step: &StepReport, figures: &StepFigures) -> Result<(), TrainError> {
        let rates = self.rates(step);
        let Some(file) = &mut self.metrics_file else {
            return Ok(());
        };
        let record = MetricsRecord::new("train", step.iteration)
            .with_some("loss", step.loss())
            .with("learning_rate", step.learning_rate)
            .with_some("decoupled_learning_rate", step.decoupled_learning_rate)
            .with("weight_decay", step.weight_decay)
            .with("grad_norm", step.grad_norm as f32)
            .with_some("params_norm", figures.params_norm)
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
        let record = rates.into_iter().fold(record, |record, (name, value)| record.with(&name, value));
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
        figures: &StepFigures,
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
            params_norm: figures.params_norm,
            experts: router_metrics(step, config.model.moe_per_layer_logging),
            ..IterationMetrics::default()
        };
        if conditions.throughput {
            metrics.throughput = self.rolling_throughput(step);
        }
        if conditions.memory
            && let Some(memory) = &figures.memory
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

    /// Throughput for `metrics.jsonl`: that of the step, and over the window where it is asked for.
    fn rates(&self, step: &StepReport) -> Vec<(String, f64)> {
        let logger = &self.config.logger;
        let mut rates = Vec::new();
        if logger.log_throughput || logger.log_throughput_to_tensorboard {
            let world_size = self.config.parallel.world_size as u64;
            let tflops = tflops_per_device(step.flops, step.seconds, world_size);
            rates.push(("tflops_per_device".to_owned(), tflops));
        }
        if logger.log_throughput_to_tensorboard {
            rates.extend(self.rolling_throughput(step));
        }
        rates
    }

    /// Throughput over the window, once it is full, and the sizes of the batches that it is of.
    fn rolling_throughput(&self, step: &StepReport) -> Vec<(String, f64)> {
        let config = &self.config;
        let mut report = self.throughput.report(config.model.seq_length as u64, config.parallel.world_size as u64);
        if !report.is_empty() {
            report.push(("throughput/micro_batch_size".to_owned(), config.train.micro_batch_size as f64));
            report.push(("throughput/global_batch_size".to_owned(), step.batch_size as f64));
        }
        report
    }

    fn log_interval(
        &mut self,
        state: &GlobalState,
        step: &StepReport,
        figures: &StepFigures,
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
            params_norm: figures.params_norm,
            tokens_per_expert: tokens_per_expert(step),
            memory: figures.memory.as_ref().and_then(MemoryOfRanks::host),
            device_memory: figures.memory.as_ref().and_then(MemoryOfRanks::device),
            losses,
            ..TrainingLogLine::default()
        }
        .with_pace(interval.tokens, interval.seconds);
        // One object a line has both facts already.
        if let (LogFormat::Human, Some(text)) = (self.console.format(), line.step_time_line()) {
            self.note(&text);
        }
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

fn memory_line(iteration: u64, memory: &MemoryOfRanks) -> String {
    let gib = |bytes: u64| bytes as f64 / (1_u64 << 30) as f64;
    let (host, device) = (memory.host(), memory.device());
    let host = host.map(|host| {
        let (now, peak) = (gib(host.resident_bytes), gib(host.peak_resident_bytes));
        format!("memory (GiB): {now:.3} (peak {peak:.3})")
    });
    let device = device.map(|device| {
        let (used, reserved) = (gib(device.allocated_bytes), gib(device.reserved_bytes));
        format!("device memory (GiB): {used:.3} (reserved {reserved:.3})")
    });
    let known: Vec<String> = host.into_iter().chain(device).collect();
    match known.as_slice() {
        [] => format!(" [iteration {iteration}] memory: this system does not say"),
        known => format!(" [iteration {iteration}] {}", known.join(" | ")),
    }
}
