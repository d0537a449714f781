//! What a run says: console lines and progress bar, `metrics.jsonl`, TensorBoard events, the progress log and the plot.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use super::evaluate::{EvaluationReport, Split};
use super::run::GlobalState;
use super::step::StepReport;
use super::{TrainError, convert};
use crate::checkpoint::{SaveReport, TrainState};
use crate::config::{self, RunConfig};
use crate::logging::tensorboard::{EventWriter, ResumePoint};
use crate::logging::{
    CheckpointProgress, EvaluatedSplit, HostMemory, IntervalMetrics, IterationMetrics, JobStart, LogFormat, LogLevel,
    LossPlot, MetricConditions, MetricsLogger, MetricsRecord, MetricsSink, MetricsWriter, NoProgress, ProgressHandle,
    ProgressLog, ProgressMode, ProgressSink, ProgressTask, RankTimers, RuntimeReport, SaveKind, StepOutcome,
    ThroughputWindow, Timers, TrainingLog, TrainingLogLine, ValidationLogLine, read_metrics, report_l2_norm_grad,
    report_memory, timestamp,
};
use crate::model::ModelChunk;
use crate::schedule::tflops_per_device;

/// Where console lines go.
pub enum Console {
    /// Text on standard output.
    Human,
    /// One JSON object a line on standard output.
    Json,
    /// Nowhere: for services, and for dashboards that own the terminal.
    Silent,
    /// Somewhere else, as text.
    Writer(Box<dyn std::io::Write + Send>),
}

/// What a run says, and where.
pub(super) struct Reporter {
    console: crate::logging::Console,
    progress: Arc<dyn ProgressSink>,
    bar: Option<Box<dyn ProgressHandle>>,
    metrics_file: Option<MetricsWriter>,
    metrics: MetricsLogger,
    progress_log: Option<ProgressLog>,
    job_start: JobStart,
    log: TrainingLog,
    throughput: ThroughputWindow,
    interval: Interval,
    started: Instant,
    start_iteration: u64,
    config: Arc<RunConfig>,
    pending_losses: Option<PathBuf>,
    /// False on ranks that only keep warnings and errors.
    is_first: bool,
}

/// Sums since the last console line.
#[derive(Default)]
struct Interval {
    seconds: f64,
    tokens: u64,
    flops_at_start: f64,
}

impl Reporter {
    /// A reporter for a run that starts from `start`. Metrics beyond that, from a run that went further before it was
    /// interrupted, are dropped from the files. Ranks other than 0 only keep warnings and errors, in a file of their own.
    pub(super) fn new(
        config: &Arc<RunConfig>,
        console: Console,
        start: &TrainState,
        rank: usize,
    ) -> Result<Self, TrainError> {
        if rank > 0 {
            return Ok(Self::of_other_rank(config, rank));
        }
        let (completed, consumed_samples) = (start.step, start.consumed_train_samples);
        let logger = &config.logger;
        let (format, output, silent): (_, Box<dyn std::io::Write + Send>, bool) = match console {
            Console::Human => (LogFormat::Human, Box::new(std::io::stdout()), false),
            Console::Json => (LogFormat::Json, Box::new(std::io::stdout()), false),
            Console::Silent => (LogFormat::Human, Box::new(std::io::sink()), true),
            Console::Writer(output) => (LogFormat::Human, output, true),
        };
        let progress: Arc<dyn ProgressSink> = match logger.progress {
            _ if silent => Arc::new(NoProgress),
            config::Progress::Auto => ProgressMode::Auto.sink(),
            config::Progress::Bar => ProgressMode::Bar.sink(),
            config::Progress::Plain => ProgressMode::Plain.sink(),
            config::Progress::None => ProgressMode::None.sink(),
        };
        let console = crate::logging::Console::new(format, output)
            .with_level(logger.logging_level as u32)
            .with_progress(Arc::clone(&progress));
        let metrics_path = logger.log_dir.join("metrics.jsonl");
        let metrics_file = match logger.metrics_jsonl {
            true => {
                Some(MetricsWriter::open(&metrics_path, completed).map_err(|e| TrainError::log("metrics.jsonl", e))?)
            }
            false => None,
        };
        let pending_losses = (logger.plot && logger.metrics_jsonl).then_some(metrics_path);
        let save = config.checkpoint.save.as_ref();
        let progress_log = match (logger.log_progress, save) {
            (true, Some(save)) => {
                let job = std::env::var("SLURM_JOB_ID").unwrap_or_default();
                std::fs::create_dir_all(save).map_err(|e| TrainError::log(save.display().to_string(), e))?;
                Some(ProgressLog::new(&save.join("progress.txt"), &job, config.parallel.world_size as u64))
            }
            _ => None,
        };
        Ok(Self {
            metrics: MetricsLogger::new(conditions(config), sinks(config, completed, consumed_samples)?),
            throughput: ThroughputWindow::new(logger.throughput_window_size),
            job_start: JobStart::now(0.0),
            log: TrainingLog::default(),
            interval: Interval::default(),
            started: Instant::now(),
            start_iteration: completed,
            config: Arc::clone(config),
            bar: None,
            console,
            progress,
            metrics_file,
            progress_log,
            pending_losses,
            is_first: true,
        })
    }

    fn of_other_rank(config: &Arc<RunConfig>, rank: usize) -> Self {
        let path = config.logger.log_dir.join("ranks").join(format!("rank_{rank:05}.log"));
        let console = crate::logging::Console::new(LogFormat::Human, Box::new(RankLog { path, file: None }))
            .with_level((config.logger.logging_level as u32).max(LogLevel::Warning.number()));
        Self {
            metrics: MetricsLogger::new(conditions(config), Vec::new()),
            throughput: ThroughputWindow::new(config.logger.throughput_window_size),
            job_start: JobStart::now(0.0),
            log: TrainingLog::default(),
            interval: Interval::default(),
            started: Instant::now(),
            start_iteration: 0,
            config: Arc::clone(config),
            bar: None,
            console,
            progress: Arc::new(NoProgress),
            metrics_file: None,
            progress_log: None,
            pending_losses: None,
            is_first: false,
        }
    }

    /// Keeps the error that ends the run, in this rank's own file: the caller of the run tells that of rank 0.
    pub(super) fn fail(&self, error: &TrainError) {
        if !self.is_first {
            let _ = self.console.message(LogLevel::Error, &format!("{} {error}", timestamp()));
        }
    }

    /// Where long work shows how far it has come.
    pub(super) fn progress(&self) -> Arc<dyn ProgressSink> {
        Arc::clone(&self.progress)
    }

    /// Prints a line.
    pub(super) fn note(&self, text: &str) {
        // A console that is gone must not end a run that still saves checkpoints.
        let _ = self.console.message(LogLevel::Info, text);
    }

    /// Prints a warning.
    pub(super) fn warn(&self, text: &str) {
        let _ = self.console.message(LogLevel::Warning, text);
    }

    /// Says what is trained, and starts the bar.
    pub(super) fn run_starts(&mut self, state: &GlobalState, chunks: &[Box<dyn ModelChunk>]) -> Result<(), TrainError> {
        if !self.is_first {
            return Ok(());
        }
        let parameters: usize = chunks.iter().flat_map(|c| c.parameters()).map(|p| p.num_elements()).sum();
        let config = Arc::clone(&self.config);
        self.note(&format!(
            "{}: {} with {:.2} M parameters on {}, {} iterations of {} x {} tokens; logs in {}",
            config.name,
            config.model.kind,
            parameters as f64 / 1e6,
            config.device,
            config.train.train_iters,
            config.train.global_batch_size,
            config.model.seq_length,
            config.logger.log_dir.display(),
        ));
        if let Some(path) = &config.logger.save_config_filepath {
            write_file(path, config.to_toml().as_bytes())?;
        }
        self.interval.flops_at_start = state.train_state.floating_point_operations_so_far;
        if let Some(log) = &self.progress_log {
            self.job_start = log
                .job_started(state.train_state.floating_point_operations_so_far)
                .map_err(|e| TrainError::log("progress.txt", e))?;
        }
        self.throughput.push(0.0, state.train_state.consumed_train_samples);
        if state.train_state.do_train && state.train_state.step < config.train.train_iters as u64 {
            let mut task = ProgressTask::new("training", config.train.train_iters as u64, "it");
            task.done = state.train_state.step;
            self.bar = Some(self.progress.start(task));
        }
        self.started = Instant::now();
        Ok(())
    }

    /// Reports a step that `state` already counts.
    pub(super) fn step(
        &mut self,
        state: &GlobalState,
        step: &StepReport,
        params_norm: Option<f64>,
        timers: &Timers,
    ) -> Result<(), TrainError> {
        if !self.is_first {
            return Ok(());
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
            return Ok(());
        }
        let due = |interval: usize| step.iteration.is_multiple_of(interval as u64);
        let (line_is_due, memory_is_due) = (due(logger.log_interval), logger.log_memory_interval.is_some_and(due));
        self.write_step(state, step, params_norm)?;
        self.log_iteration(state, step, &losses, params_norm)?;
        if line_is_due {
            self.log_interval(state, step, params_norm, timers)?;
        }
        if memory_is_due {
            self.note(&memory_line(step.iteration, HostMemory::read()));
        }
        Ok(())
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
        timers: &Timers,
    ) -> Result<(), TrainError> {
        let interval = std::mem::take(&mut self.interval);
        let losses = self.log.drain();
        let iterations = losses.total_iterations().max(1);
        let flops_now = state.train_state.floating_point_operations_so_far;
        self.interval.flops_at_start = flops_now;
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
            memory: HostMemory::read(),
            losses,
            ..TrainingLogLine::default()
        }
        .with_pace(interval.tokens, interval.seconds);
        let _ = self.console.record(&line);
        let report = RankTimers::new(&[timers.drain()]);
        let option = convert::timing_option(&self.config);
        if let Some(text) = report.format(option, iterations) {
            self.note(text.trim_end());
        }
        let metrics = IntervalMetrics {
            iteration: step.iteration,
            consumed_samples: state.train_state.consumed_train_samples,
            iteration_time: interval.seconds / iterations as f64,
            tflops: tflops * world_size as f64,
            world_size,
            energy: None,
            timers: report.metrics(option, iterations),
        };
        self.metrics.log_interval(&metrics).map_err(|e| TrainError::log("TensorBoard events", e))
    }

    /// Shows how far an evaluation has come.
    pub(super) fn evaluating(&mut self, split: Split, done: u64, total: u64) {
        if let Some(bar) = &mut self.bar {
            let of = if total == usize::MAX as u64 { String::new() } else { format!("/{total}") };
            bar.set_message(&format!("{}: {done}{of}", split.name()));
        }
    }

    /// Reports an evaluation.
    pub(super) fn evaluation(&mut self, state: &GlobalState, report: &EvaluationReport) -> Result<(), TrainError> {
        if !self.is_first {
            return Ok(());
        }
        let losses: Vec<_> = report.losses.iter().map(|(name, r)| (name.clone(), r.value())).collect();
        let split = match report.split {
            Split::Valid => EvaluatedSplit::Valid,
            Split::Test => EvaluatedSplit::Test,
        };
        let consumed_samples = state.train_state.consumed_train_samples;
        let record = MetricsRecord::new(split.kind(), report.iteration)
            .with_some("loss", report.loss())
            .with_some("perplexity", report.perplexity())
            .with_some("bits_per_byte", report.bits_per_byte)
            .with("num_samples", report.num_samples)
            .with("consumed_samples", consumed_samples);
        let (iteration, bits_per_byte) = (report.iteration, report.bits_per_byte);
        let line = ValidationLogLine { split, iteration, losses: losses.clone(), bits_per_byte, record };
        // A console that is gone must not end a run that still saves checkpoints.
        let _ = self.console.record(&line);
        if let Some(file) = &mut self.metrics_file {
            file.write(&line.record).map_err(|e| TrainError::log("metrics.jsonl", e))?;
        }
        self.metrics
            .log_evaluation(split, iteration, consumed_samples, &losses)
            .map_err(|e| TrainError::log("TensorBoard events", e))
    }

    /// Reports a save that was made, or started in the background.
    pub(super) fn save(
        &mut self,
        state: &GlobalState,
        step: u64,
        is_async: bool,
        report: Option<&SaveReport>,
    ) -> Result<(), TrainError> {
        if let (false, Some(report)) = (is_async, report) {
            self.note(&saved_line(report));
        }
        let Some(log) = &self.progress_log else {
            return Ok(());
        };
        let kind = if is_async { SaveKind::Async } else { SaveKind::Blocking };
        let tokens = state.train_state.consumed_train_samples * self.config.model.seq_length as u64;
        let progress =
            CheckpointProgress { iteration: step, flops: state.train_state.floating_point_operations_so_far, tokens };
        log.checkpoint_saved(kind, progress, &self.job_start).map_err(|e| TrainError::log("progress.txt", e))
    }

    /// Reports a save that ended in the background.
    pub(super) fn saved_in_background(&mut self, _state: &GlobalState, report: &SaveReport) -> Result<(), TrainError> {
        self.note(&saved_line(report));
        match &self.progress_log {
            Some(log) => log.async_save_finished(report.iteration).map_err(|e| TrainError::log("progress.txt", e)),
            None => Ok(()),
        }
    }

    /// Takes the bar away: training is over.
    pub(super) fn training_ends(&mut self) {
        self.bar = None;
    }

    /// Writes what is left: events and plots.
    pub(super) fn finish(&mut self, _state: &GlobalState) -> Result<(), TrainError> {
        self.bar = None;
        self.metrics.flush().map_err(|e| TrainError::log("TensorBoard events", e))?;
        if let Some(path) = &self.pending_losses {
            let folder = &self.config.logger.log_dir;
            let records = read_metrics(path).map_err(|e| TrainError::log("metrics.jsonl", e))?;
            let plot = LossPlot::from_metrics(&self.config.name, &records);
            let drawn =
                plot.write_svg(&folder.join("loss.svg")).and_then(|()| plot.write_png(&folder.join("loss.png")));
            if let Err(error) = drawn {
                self.warn(&format!("no plot of the loss: {error}"));
            }
        }
        Ok(())
    }
}

/// The log file of one rank; it appears with the first line.
struct RankLog {
    path: PathBuf,
    file: Option<std::fs::File>,
}

impl std::io::Write for RankLog {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let file = match &mut self.file {
            Some(file) => file,
            empty => {
                if let Some(folder) = self.path.parent() {
                    std::fs::create_dir_all(folder)?;
                }
                empty.insert(std::fs::OpenOptions::new().create(true).append(true).open(&self.path)?)
            }
        };
        file.write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.file.as_mut().map_or(Ok(()), std::io::Write::flush)
    }
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

fn saved_line(report: &SaveReport) -> String {
    let pruned = match report.pruned.as_slice() {
        [] => String::new(),
        pruned => format!("; deleted iterations {pruned:?}"),
    };
    let trouble = report.prune_error.as_ref().map(|e| format!("; older ones not deleted: {e}")).unwrap_or_default();
    format!(
        "saved {} ({:.1} MB in {:.2} s){pruned}{trouble}",
        report.path.display(),
        report.bytes as f64 / 1e6,
        report.seconds
    )
}

fn conditions(config: &RunConfig) -> MetricConditions {
    let logger = &config.logger;
    MetricConditions {
        interval: logger.tensorboard_log_interval as u64,
        loss_scale: logger.log_loss_scale_to_tensorboard,
        world_size: logger.log_world_size_to_tensorboard,
        validation_ppl: logger.log_validation_ppl_to_tensorboard,
        timers: logger.log_timers_to_tensorboard,
        throughput: logger.log_throughput_to_tensorboard,
        memory: logger.log_memory_to_tensorboard,
        runtime: logger.log_runtime_to_tensorboard,
        l2_norm_grad: logger.log_l2_norm_grad_to_tensorboard,
        energy: false,
    }
}

fn sinks(config: &RunConfig, completed: u64, consumed_samples: u64) -> Result<Vec<Box<dyn MetricsSink>>, TrainError> {
    let logger = &config.logger;
    let folder = logger.tensorboard_dir.clone().unwrap_or_else(|| logger.log_dir.join("tensorboard"));
    let resume = ResumePoint { iteration: completed, consumed_samples };
    let writer = EventWriter::open(&folder, resume, logger.tensorboard_queue_size)
        .map_err(|e| TrainError::log("TensorBoard events", e))?;
    Ok(vec![Box::new(writer)])
}

fn write_file(path: &Path, bytes: &[u8]) -> Result<(), TrainError> {
    let error = |e: std::io::Error| TrainError::log(path.display().to_string(), e);
    if let Some(parent) = path.parent() {
        std::fs::create_dir_all(parent).map_err(error)?;
    }
    std::fs::write(path, bytes).map_err(error)
}
