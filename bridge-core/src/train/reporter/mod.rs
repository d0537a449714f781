//! What a run says: console lines and progress bar, `metrics.jsonl`, TensorBoard events, the progress log and the plot.

mod failures;
mod rank_log;
mod steps;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use failures::LogFailures;
use rank_log::RankLog;
use steps::Interval;
pub(super) use steps::StepFigures;

use super::TrainError;
use super::evaluate::{EvaluationReport, Split};
use super::run::GlobalState;
use crate::checkpoint::{SaveReport, TrainState};
use crate::config::{self, RunConfig};
use crate::logging::tensorboard::{EventWriter, ResumePoint};
use crate::logging::{
    CheckpointProgress, EvaluatedSplit, JobStart, LogFormat, LogLevel, LogRecord, LossPlot, MetricConditions,
    MetricsLogger, MetricsRecord, MetricsSink, MetricsWriter, NoProgress, Occasion, ProgressHandle, ProgressLog,
    ProgressMode, ProgressSink, ProgressTask, SaveKind, ThroughputWindow, TrainingLog, ValidationLogLine, read_metrics,
    timestamp,
};

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
    /// Samples trained on by this run: those of iterations that are skipped take no time.
    trained_samples: u64,
    /// Whether the console has lines of this run about memory.
    has_told_memory: bool,
    config: Arc<RunConfig>,
    pending_losses: Option<PathBuf>,
    failures: LogFailures,
    /// Lines that the console did not take: its reader may be gone.
    lost_lines: AtomicU64,
    /// False on ranks that only keep warnings and errors.
    is_first: bool,
}

impl Reporter {
    /// A reporter that has no files yet, so that a run that is refused leaves those of earlier runs as they are. Ranks other than 0 only
    /// keep warnings and errors, in a file of their own.
    pub(super) fn new(config: &Arc<RunConfig>, console: Console, rank: usize) -> Self {
        if rank > 0 {
            return Self::of_other_rank(config, rank);
        }
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
        Self { progress, is_first: true, has_told_memory: false, ..Self::without_files(config, console) }
    }

    fn of_other_rank(config: &Arc<RunConfig>, rank: usize) -> Self {
        let path = config.logger.log_dir.join("ranks").join(format!("rank_{rank:05}.log"));
        let console = crate::logging::Console::new(LogFormat::Human, Box::new(RankLog::new(path)))
            .with_level((config.logger.logging_level as u32).max(LogLevel::Warning.number()));
        Self::without_files(config, console)
    }

    fn without_files(config: &Arc<RunConfig>, console: crate::logging::Console) -> Self {
        Self {
            metrics: MetricsLogger::new(conditions(config), Vec::new()),
            throughput: ThroughputWindow::new(config.logger.throughput_window_size),
            job_start: JobStart::now(0.0),
            log: TrainingLog::default(),
            interval: Interval::default(),
            started: Instant::now(),
            start_iteration: 0,
            trained_samples: 0,
            has_told_memory: true,
            config: Arc::clone(config),
            bar: None,
            console,
            progress: Arc::new(NoProgress),
            metrics_file: None,
            progress_log: None,
            pending_losses: None,
            failures: LogFailures::default(),
            lost_lines: AtomicU64::new(0),
            is_first: false,
        }
    }

    /// Opens the logs of a run that starts from `start`. Metrics beyond that, from a run that went further before it was interrupted, are
    /// dropped from the files. Ranks other than 0 have none.
    pub(super) fn open_files(&mut self, start: &TrainState) -> Result<(), TrainError> {
        if !self.is_first {
            return Ok(());
        }
        let (completed, consumed_samples) = (start.step, start.consumed_train_samples);
        let config = Arc::clone(&self.config);
        let logger = &config.logger;
        self.start_iteration = completed;
        let metrics_path = logger.log_dir.join("metrics.jsonl");
        if logger.metrics_jsonl {
            let opened = MetricsWriter::open(&metrics_path, completed);
            self.metrics_file = Some(opened.map_err(|e| TrainError::log("metrics.jsonl", e))?);
        }
        if let Some(save) = config.checkpoint.save.as_ref().filter(|_| logger.log_progress) {
            let job = std::env::var("SLURM_JOB_ID").unwrap_or_default();
            std::fs::create_dir_all(save).map_err(|e| TrainError::log(save.display().to_string(), e))?;
            self.progress_log =
                Some(ProgressLog::new(&save.join("progress.txt"), &job, config.parallel.world_size as u64));
        }
        self.metrics = MetricsLogger::new(conditions(&config), sinks(&config, completed, consumed_samples)?);
        self.pending_losses = (logger.plot && logger.metrics_jsonl).then_some(metrics_path);
        Ok(())
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
        self.printed(self.console.message(LogLevel::Info, text));
    }

    /// Prints a warning.
    pub(super) fn warn(&self, text: &str) {
        self.printed(self.console.message(LogLevel::Warning, text));
    }

    fn print(&self, record: &dyn LogRecord) {
        self.printed(self.console.record(record));
    }

    /// A console that is gone must not end a run that still saves checkpoints; what it has missed is counted.
    fn printed(&self, outcome: std::io::Result<()>) {
        if outcome.is_err() {
            self.lost_lines.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Lets the run go on where a log file could not be written: checkpoints matter more, and come later in the step.
    fn keep_going(&mut self, iteration: u64, written: Result<(), TrainError>) {
        if let Err(error) = written
            && let Some(line) = self.failures.count(iteration, &error)
        {
            self.warn(&line);
        }
    }

    /// Says at the end what the logs lack, on standard error where the console is gone.
    fn tell_what_is_missing(&self) {
        if let Some(summary) = self.failures.summary() {
            self.warn(&summary);
        }
        let lost = self.lost_lines.load(Ordering::Relaxed);
        if lost > 0 && self.is_first {
            let logs = self.failures.summary().map(|summary| format!("; {summary}")).unwrap_or_default();
            // There is nobody left to tell that this failed, too.
            let _ = writeln!(std::io::stderr(), "warning: {lost} lines could not be printed on the console{logs}");
        }
    }

    /// Says what is trained, and starts the bar.
    pub(super) fn run_starts(&mut self, state: &GlobalState, num_parameters: u64) -> Result<(), TrainError> {
        if !self.is_first {
            return Ok(());
        }
        let config = Arc::clone(&self.config);
        self.note(&format!(
            "{}: {} with {:.2} M parameters on {}, {} iterations of {} x {} tokens; logs in {}",
            config.name,
            config.model.kind,
            num_parameters as f64 / 1e6,
            config.device,
            config.train.train_iters,
            config.train.global_batch_size,
            config.model.seq_length,
            config.logger.log_dir.display(),
        ));
        if let Some(path) = &config.logger.save_config_filepath {
            write_file(path, config.to_toml().as_bytes())?;
        }
        self.interval = Interval::starting_at(state.train_state.floating_point_operations_so_far);
        if let Some(log) = &self.progress_log {
            self.job_start = log
                .job_started(state.train_state.floating_point_operations_so_far)
                .map_err(|e| TrainError::log("progress.txt", e))?;
        }
        self.throughput.push(0.0, 0);
        if state.train_state.do_train && state.train_state.step < config.train.train_iters as u64 {
            let mut task = ProgressTask::new("training", config.train.train_iters as u64, "it");
            task.done = state.train_state.step;
            self.bar = Some(self.progress.start(task));
        }
        self.started = Instant::now();
        Ok(())
    }

    /// Shows how far an evaluation has come.
    pub(super) fn evaluating(&mut self, split: Split, done: u64, total: u64) {
        if let Some(bar) = &mut self.bar {
            let of = if total == usize::MAX as u64 { String::new() } else { format!("/{total}") };
            bar.set_message(&format!("{}: {done}{of}", split.name()));
        }
    }

    /// Reports an evaluation.
    pub(super) fn evaluation(&mut self, state: &GlobalState, report: &EvaluationReport, occasion: Occasion) {
        if !self.is_first {
            return;
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
        let line = ValidationLogLine { split, occasion, iteration, losses: losses.clone(), bits_per_byte, record };
        self.print(&line);
        if let Some(file) = &mut self.metrics_file {
            let written = file.write(&line.record).map_err(|e| TrainError::log("metrics.jsonl", e));
            self.keep_going(iteration, written);
        }
        if let Some(bar) = &mut self.bar {
            bar.set_message("");
        }
        let written = self.metrics.log_evaluation(split, iteration, consumed_samples, &losses);
        self.keep_going(iteration, written.map_err(|e| TrainError::log("TensorBoard events", e)));
    }

    /// Reports a save that was made, or started in the background.
    pub(super) fn save(&mut self, state: &GlobalState, step: u64, is_async: bool, report: Option<&SaveReport>) {
        if let (false, Some(report)) = (is_async, report) {
            self.note(&saved_line(report));
        }
        let Some(log) = &self.progress_log else {
            return;
        };
        let kind = if is_async { SaveKind::Async } else { SaveKind::Blocking };
        let tokens = state.train_state.consumed_train_samples * self.config.model.seq_length as u64;
        let progress =
            CheckpointProgress { iteration: step, flops: state.train_state.floating_point_operations_so_far, tokens };
        let written = log.checkpoint_saved(kind, progress, &self.job_start);
        self.keep_going(step, written.map_err(|e| TrainError::log("progress.txt", e)));
    }

    /// Reports a save that ended in the background.
    pub(super) fn saved_in_background(&mut self, _state: &GlobalState, report: &SaveReport) {
        self.note(&saved_line(report));
        if let Some(log) = &self.progress_log {
            let written = log.async_save_finished(report.iteration).map_err(|e| TrainError::log("progress.txt", e));
            self.keep_going(report.iteration, written);
        }
    }

    /// Takes the bar away: training is over.
    pub(super) fn training_ends(&mut self) {
        self.bar = None;
    }

    /// Writes what is left: events and plots. Says what the logs lack.
    pub(super) fn finish(&mut self, state: &GlobalState) {
        self.bar = None;
        let written = self.metrics.flush().map_err(|e| TrainError::log("TensorBoard events", e));
        self.keep_going(state.train_state.step, written);
        if let Some(path) = &self.pending_losses
            && let Err(error) = self.draw(path)
        {
            self.warn(&format!("no plot of the loss: {error}"));
        }
        self.tell_what_is_missing();
    }

    fn draw(&self, metrics: &Path) -> Result<(), Box<dyn std::error::Error>> {
        let folder = &self.config.logger.log_dir;
        let plot = LossPlot::from_metrics(&self.config.name, &read_metrics(metrics)?);
        plot.write_svg(&folder.join("loss.svg"))?;
        Ok(plot.write_png(&folder.join("loss.png"))?)
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
