//! Records of a run for its sinks, whose failures end no run.

mod failures;
mod perplexity;
mod recorder;

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bridge_data::untrusted_io;
use failures::LogFailures;
use recorder::Recorder;

use crate::checkpoint::{SaveReport, TrainState};
use crate::config::{self, RunConfig};
use crate::logging::chart::{CAN_DRAW, PlotError};
use crate::logging::numbers::grouped;
use crate::logging::terminal::{coloured_output, output_is_terminal, plain_output, printable};
use crate::logging::{
    ConsoleSink, Deferred, Ending, LogFormat, LogLevel, MadeAgain, NoProgress, ProgressSink, RankLog, RunEnd, RunStart,
    SaveRecord, SaveStage, Sink, SinkContext, SinkError, Split, Verbosity, open_sinks, progress_sink, timestamp,
};
use crate::optim::ModelSize;
use crate::train::engine::global_state::GlobalState;
use crate::train::error::CommonError;
use crate::train::reporting::report::{EvaluationReport, StepReport};

/// Destination of console lines.
pub enum Console {
    /// Text on standard output: lines that fit a terminal, and full lines elsewhere.
    Human,
    /// One JSON object a line on standard output.
    Json,
    /// Nowhere: for services, and for dashboards that own the terminal.
    Silent,
    /// Somewhere else, as text.
    Writer(Box<dyn std::io::Write + Send>),
}

/// Reporter of a run: its records and their sinks.
pub(in crate::train) struct Reporter {
    outputs: Mutex<Outputs>,
    recorder: Recorder,
    progress: Arc<dyn ProgressSink>,
    config: Arc<RunConfig>,
    /// False on ranks that only keep warnings and errors.
    is_first: bool,
}

/// The sinks of a run, and their failures.
struct Outputs {
    /// The console is last, so that it can report failures of other sinks.
    sinks: Vec<Box<dyn Sink>>,
    failures: LogFailures,
}

impl Outputs {
    fn line(&mut self, level: LogLevel, text: &str) {
        let safe = config::redacted(text);
        let text = printable(&safe);
        for sink in &mut self.sinks {
            if let Err(error) = sink.on_line(level, &text) {
                // A message about it would be one more line that cannot be written.
                let _ = self.failures.count(0, sink.name(), &error);
            }
        }
    }

    fn tell(&mut self, mut tell: impl FnMut(&mut dyn Sink) -> Result<(), SinkError>) {
        for sink in &mut self.sinks {
            if let Err(error) = tell(sink.as_mut()) {
                let _ = self.failures.count(0, sink.name(), &error);
            }
        }
    }

    /// Serves each sink. A sink that cannot write is reported, and the run continues: checkpoints
    /// matter more, and come later in the step.
    fn serve(&mut self, iteration: u64, mut write: impl FnMut(&mut dyn Sink) -> Result<(), SinkError>) {
        let mut warnings = Vec::new();
        for sink in &mut self.sinks {
            if let Err(error) = write(sink.as_mut()) {
                warnings.extend(self.failures.count(iteration, sink.name(), &error));
            }
        }
        warnings.iter().for_each(|warning| self.line(LogLevel::Warning, warning));
    }
}

impl Reporter {
    /// A reporter that has no files yet, so that a run that is refused leaves those of earlier runs
    /// as they are. Ranks other than 0 only keep warnings and errors, in a file of their own.
    pub(in crate::train) fn new(config: &Arc<RunConfig>, console: Console, verbosity: Verbosity, rank: usize) -> Self {
        let is_first = rank == 0;
        let (progress, sink) = match is_first {
            true => open_console(config, console, verbosity),
            false => (Arc::new(NoProgress) as _, Box::new(RankLog::new(config, rank)) as _),
        };
        Self {
            outputs: Mutex::new(Outputs { sinks: vec![sink], failures: LogFailures::default() }),
            recorder: Recorder::new(config),
            progress,
            config: Arc::clone(config),
            is_first,
        }
    }

    /// Replaces the configuration once the number of iterations is known.
    pub(in crate::train) fn set_config(&mut self, config: &Arc<RunConfig>) {
        let epoch_samples = self.recorder.epoch_samples;
        self.recorder = Recorder::new(config);
        self.recorder.epoch_samples = epoch_samples;
        self.config = Arc::clone(config);
    }

    /// Opens the sinks of the run named `run`, which starts from `start`; those that the program
    /// hands in come after those of the recipe. Ranks other than 0 have none.
    pub(in crate::train) fn open_sinks(
        &mut self,
        run: &str,
        start: &TrainState,
        handed_in: Vec<Box<dyn Sink>>,
    ) -> Result<(), CommonError> {
        if !self.is_first {
            return Ok(());
        }
        let (iteration, consumed_samples) = (start.step, start.consumed_train_samples);
        let again = MadeAgain::from_resume(&self.config, iteration);
        let opened = open_sinks(&SinkContext { config: &self.config, run, iteration, consumed_samples, again })?;
        let lacking: Vec<String> = opened.iter().chain(&handed_in).filter_map(|sink| sink.missing_history()).collect();
        self.lock().sinks.splice(0..0, opened.into_iter().chain(handed_in));
        lacking.iter().for_each(|text| self.warn(text));
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, Outputs> {
        self.outputs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps the error that ends the run, in this rank's own file: the caller of the run tells that
    /// of rank 0.
    pub(in crate::train) fn fail(&self, error: &dyn std::error::Error) {
        if !self.is_first {
            self.lock().line(LogLevel::Error, &format!("{} {error}", timestamp()));
        }
    }

    /// Progress display for long work.
    pub(in crate::train) fn progress(&self) -> Arc<dyn ProgressSink> {
        Arc::clone(&self.progress)
    }

    /// Sends a line at info level to all sinks of this rank.
    pub(in crate::train) fn note(&self, text: &str) {
        self.lock().line(LogLevel::Info, text);
    }

    /// Prints a line that only a verbose console shows.
    pub(in crate::train) fn debug(&self, text: &str) {
        self.lock().tell(|sink| sink.on_details(text));
    }

    /// Prints the settings that differ from the defaults.
    pub(in crate::train) fn configuration(&self, text: &str) {
        self.lock().tell(|sink| sink.on_configuration(text));
    }

    /// Counts epochs of `samples` samples.
    pub(in crate::train) fn count_epochs(&mut self, samples: Option<u64>) {
        self.recorder.epoch_samples = samples;
    }

    /// Prints a warning.
    pub(in crate::train) fn warn(&self, text: &str) {
        self.lock().line(LogLevel::Warning, text);
    }

    /// Prints a description of the run, and starts the progress bar.
    pub(in crate::train) fn run_starts(&mut self, state: &GlobalState, size: ModelSize) -> Result<(), CommonError> {
        if !self.is_first {
            return Ok(());
        }
        let config = Arc::clone(&self.config);
        self.note(&format!(
            "{}: {} with {:.2} M parameters on {}, {} iterations of {} x {} tokens; logs in {}{}",
            config.name,
            config.model.kind,
            size.parameters as f64 / 1e6,
            config.device,
            config.train.train_iters,
            config.train.global_batch_size,
            config.model.seq_length,
            config.logger.log_dir.display(),
            if config.checkpoint.save.is_none() { "; no checkpoints: checkpoint.save is not set" } else { "" },
        ));
        let (all, trained) = (grouped(size.parameters), grouped(size.trained));
        self.note(&format!("parameters: {all}, of which {trained} are trained; {}", config.parallel));
        if config.logger.plot && config.logger.metrics_jsonl && !CAN_DRAW {
            self.note(&format!("logger.plot: {}", PlotError::NotCompiledIn));
        }
        if let Some(path) = &config.logger.save_config_filepath {
            write_file(path, config.to_toml().as_bytes())?;
        }
        let (counters, train_iters) = (&state.train_state, config.train.train_iters as u64);
        let start = RunStart {
            iteration: counters.step,
            flops: counters.floating_point_operations_so_far,
            train_iters: (counters.do_train && counters.step < train_iters).then_some(train_iters),
        };
        let mut warnings = Vec::new();
        for sink in &mut self.lock().sinks {
            match sink.on_run_start(&start) {
                // The sink keeps its records: an unreachable tracker does not prevent training.
                Err(error) if error.is::<Deferred>() => warnings.push(format!("{}: {error}", sink.name())),
                started => started.map_err(|error| CommonError::log(sink.name(), error))?,
            }
        }
        warnings.iter().for_each(|warning| self.warn(warning));
        self.recorder.run_starts(state);
        Ok(())
    }

    /// Reports a step that `state` already counts.
    pub(in crate::train) fn step(&mut self, state: &GlobalState, step: &StepReport) {
        if self.is_first {
            let record = self.recorder.step(state, step);
            self.lock().serve(step.iteration, |sink| sink.on_record(&record));
            if let Some(expected) = self.recorder.time_expected(step) {
                self.note(&expected);
            }
        }
    }

    /// Shows how far an evaluation has come.
    pub(in crate::train) fn evaluating(&mut self, split: Split, done: u64, total: u64) {
        let of = if total == usize::MAX as u64 { String::new() } else { format!("/{total}") };
        let text = format!("{}: {done}{of}", split.name());
        self.lock().sinks.iter_mut().for_each(|sink| sink.on_evaluating(&text));
    }

    /// Reports an evaluation.
    pub(in crate::train) fn evaluation(&mut self, state: &GlobalState, report: &EvaluationReport) {
        if self.is_first {
            let record = self.recorder.evaluation(state, report);
            self.lock().serve(report.iteration, |sink| sink.on_record(&record));
        }
    }

    /// Reports a save that was made, or has begun or ended in the background; `report` is that of
    /// one that is on disk.
    pub(in crate::train) fn save(
        &mut self,
        state: &GlobalState,
        stage: SaveStage,
        iteration: u64,
        report: Option<&SaveReport>,
    ) {
        if let Some(report) = report {
            self.note(&saved_line(report));
        }
        let state = &state.train_state;
        let tokens = state.consumed_train_samples * self.config.model.seq_length as u64;
        let save = SaveRecord { iteration, stage, flops: state.floating_point_operations_so_far, tokens };
        self.lock().serve(iteration, |sink| sink.on_save(&save));
    }

    /// Lets the sinks write what waits: a temporary save was made.
    pub(in crate::train) fn save_non_persistent(&mut self, iteration: u64) {
        self.lock().serve(iteration, |sink| sink.on_temporary_save());
    }

    /// Takes the bar away: training is over.
    pub(in crate::train) fn training_ends(&mut self) {
        self.lock().sinks.iter_mut().for_each(|sink| sink.on_train_end());
    }

    /// Writes the remaining output: events and plots. Reports missing output.
    pub(in crate::train) fn finish(&mut self, state: &GlobalState, ending: Ending) {
        let iteration = state.train_state.step;
        let mut outputs = self.lock();
        let mut end = RunEnd { ending, iteration, missing: outputs.failures.summary(), warnings: Vec::new() };
        let Outputs { sinks, failures } = &mut *outputs;
        for sink in sinks {
            if let Err(error) = sink.on_run_end(&mut end) {
                end.warnings.extend(failures.count(iteration, sink.name(), &error));
                end.missing = failures.summary();
            }
        }
    }
}

/// The console of rank 0, and where it shows progress.
fn open_console(config: &RunConfig, console: Console, verbosity: Verbosity) -> (Arc<dyn ProgressSink>, Box<dyn Sink>) {
    use std::io::sink;

    let short = output_is_terminal() && verbosity != Verbosity::Verbose;
    let (format, output, silent): (_, Box<dyn std::io::Write + Send>, bool) = match console {
        Console::Human if short => (LogFormat::Short, coloured_output(), false),
        Console::Human => (LogFormat::Human, plain_output(), false),
        Console::Json => (LogFormat::Json, plain_output(), false),
        Console::Silent => (LogFormat::Human, Box::new(sink()), true),
        Console::Writer(output) => (LogFormat::Human, output, true),
    };
    let progress: Arc<dyn ProgressSink> = match config.logger.progress {
        _ if silent || verbosity == Verbosity::Quiet => Arc::new(NoProgress),
        display => progress_sink(display),
    };
    let sink = ConsoleSink::new(config, format, output, Arc::clone(&progress), verbosity);
    (progress, Box::new(sink))
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

fn write_file(path: &Path, bytes: &[u8]) -> Result<(), CommonError> {
    let error = |e: std::io::Error| CommonError::log(path.display().to_string(), e);
    if let Some(parent) = path.parent() {
        std::fs::create_dir_all(parent).map_err(error)?;
    }
    untrusted_io::replace(path, bytes).map_err(error)
}
