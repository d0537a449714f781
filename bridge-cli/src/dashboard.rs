//! `--ui tui`: burn-train's terminal dashboard, fed by the loop as a subsystem.
//!
//! Beside the curves stand lines about the ranks of the run: how many there are, which are slow,
//! and how often they began again.
//!
//! The dashboard owns the terminal while it is open. Output of the run is kept and printed when it
//! closes.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bridge_core::config::RunConfig;
use bridge_core::logging::health::{RankScore, RankScores};
use bridge_core::train::{
    CancelHandle, CommonError, Console, EvaluationReport, GlobalState, LoopRequest, RunContext, RunOptions, RunReport,
    StepReport, Subsystem, SubsystemError, TrainEnd, TrainError, pretrain,
};
use bridge_dist::comm::CommError;
use burn_train::Interrupter;
use burn_train::logger::TrainingProgressLogger;
use burn_train::metric::{
    MetricAttributes, MetricDefinition, MetricEntry, MetricId, NumericAttributes, NumericEntry, SerializedEntry,
};
use burn_train::renderer::tui::TuiMetricsRendererWrapper;
use burn_train::renderer::{MetricState, MetricsRenderer, MetricsRendererTraining};

/// A metric with a curve: name, unit, and whether more is better.
struct Curve {
    name: &'static str,
    unit: Option<&'static str>,
    higher_is_better: bool,
}

const LOSS: Curve = Curve { name: "Loss", unit: None, higher_is_better: false };
const BITS_PER_BYTE: Curve = Curve { name: "Bits per byte", unit: None, higher_is_better: false };
const LEARNING_RATE: Curve = Curve { name: "Learning rate", unit: None, higher_is_better: false };
const GRAD_NORM: Curve = Curve { name: "Gradient norm", unit: None, higher_is_better: false };
const THROUGHPUT: Curve = Curve { name: "Throughput", unit: Some("tokens/s"), higher_is_better: true };
const STEP_TIME: Curve = Curve { name: "Step time", unit: Some("ms"), higher_is_better: false };
const CURVES: [Curve; 6] = [LOSS, BITS_PER_BYTE, LEARNING_RATE, GRAD_NORM, THROUGHPUT, STEP_TIME];

impl Curve {
    fn id(&self) -> MetricId {
        MetricId::new(Arc::new(self.name.to_owned()))
    }

    fn definition(&self) -> MetricDefinition {
        let unit = self.unit.map(str::to_owned);
        let numeric = NumericAttributes { unit, higher_is_better: self.higher_is_better };
        MetricDefinition {
            metric_id: self.id(),
            name: Arc::new(self.name.to_owned()),
            description: None,
            attributes: MetricAttributes::Numeric(numeric),
        }
    }

    fn point(&self, value: f64) -> MetricState {
        let number = if value != 0.0 && value.abs() < 1e-2 { format!("{value:.3e}") } else { format!("{value:.4}") };
        let text = self.unit.map_or_else(|| number.clone(), |unit| format!("{number} {unit}"));
        let entry = MetricEntry::new(self.id(), SerializedEntry::new(text, number));
        // A value that cannot be drawn still advances the curve.
        MetricState::Numeric(entry, value.is_finite().then_some(NumericEntry::Value(value)))
    }
}

/// Lines about the ranks of a run.
const RANKS: &str = "Ranks";
const STRAGGLERS: &str = "Stragglers";
const RESTARTS: &str = "Restarts";

/// Interval at which the scores of ranks are read.
const SCORES_INTERVAL: Duration = Duration::from_secs(1);

/// State of the lines about ranks.
struct Health {
    ranks: usize,
    /// Number of restarts of the ranks in this process.
    restarts: u32,
    /// Folder of the scores of ranks.
    log_dir: PathBuf,
    scores: Option<RankScores>,
    read: Option<Instant>,
}

impl Health {
    fn new(config: &RunConfig, options: &RunOptions) -> Self {
        Self {
            ranks: options.groups.world().size(),
            restarts: options.rank_env.faults,
            log_dir: config.logger.log_dir.clone(),
            scores: None,
            read: None,
        }
    }

    /// Reads the scores again if they are old. Scores of an iteration that this run has not reached
    /// belong to an earlier run.
    fn refresh(&mut self, iteration: u64) {
        if self.read.is_none_or(|read| read.elapsed() > SCORES_INTERVAL) {
            let scores = RankScores::read(&self.log_dir);
            self.scores = scores.filter(|scores| scores.iteration <= iteration && scores.ranks.len() == self.ranks);
            self.read = Some(Instant::now());
        }
    }

    /// Name and text of each line.
    fn lines(&self) -> [(&'static str, String); 3] {
        let ranks: &[RankScore] = self.scores.as_ref().map_or(&[], |scores| &scores.ranks);
        let score = |rank: &RankScore| rank.relative.or(rank.individual);
        let named = |rank: &RankScore| {
            let of = score(rank).map_or_else(String::new, |score| format!(", {score:.2}"));
            format!("{} ({}{of})", rank.rank, rank.node)
        };
        let slowest = ranks
            .iter()
            .filter(|rank| score(rank).is_some())
            .min_by(|a, b| score(a).partial_cmp(&score(b)).expect("scores are numbers"));
        let slow: Vec<String> = ranks.iter().filter(|rank| rank.is_slow).map(named).collect();
        [
            (
                RANKS,
                slowest
                    .map_or_else(|| self.ranks.to_string(), |rank| format!("{}, slowest {}", self.ranks, named(rank))),
            ),
            (
                STRAGGLERS,
                match (ranks.is_empty(), slow.is_empty()) {
                    (true, _) => "no scores".to_owned(),
                    (false, true) => "none".to_owned(),
                    (false, false) => slow.join(", "),
                },
            ),
            (RESTARTS, self.restarts.to_string()),
        ]
    }
}

fn text_id(name: &str) -> MetricId {
    MetricId::new(Arc::new(name.to_owned()))
}

/// [`pretrain`] with a dashboard. Output of the run is printed when the dashboard has closed. Fails
/// with errors of [`pretrain`], and one if the run is killed from the dashboard's menu.
pub fn pretrain_with_dashboard(config: RunConfig, mut options: RunOptions) -> Result<RunReport, TrainError> {
    let kept = KeptLines::default();
    options.console = Console::Writer(Box::new(kept.clone()));
    let health = Health::new(&config, &options);
    options.subsystems.push(Box::new(Dashboard::new(options.cancel.clone(), health)));
    // The menu's "stop immediately" arrives as a panic on this thread, after the terminal is
    // restored.
    let outcome = catch_unwind(AssertUnwindSafe(|| pretrain(config, options)));
    kept.print();
    outcome.unwrap_or_else(|payload| match payload.downcast::<CommError>() {
        Ok(error) => Err((*error).into()),
        Err(_) => Err(CommonError::Panicked("killed from the dashboard, or failed as reported above".into()).into()),
    })
}

/// The dashboard as a subsystem of the training loop.
///
/// The dashboard opens when training starts and closes when it is dropped. Its menu (`q`) stops the
/// run through `cancel`, which saves a checkpoint as any cancelled run does.
struct Dashboard {
    renderer: Option<TuiMetricsRendererWrapper>,
    interrupter: Interrupter,
    cancel: CancelHandle,
    health: Health,
}

impl Dashboard {
    /// A dashboard that is not open yet.
    fn new(cancel: CancelHandle, health: Health) -> Self {
        Self { renderer: None, interrupter: Interrupter::new(), cancel, health }
    }

    fn open(&mut self, state: &GlobalState) {
        let step = state.train_state.step as usize;
        let total = state.config.train.train_iters;
        let mut renderer = TuiMetricsRendererWrapper::new(self.interrupter.clone(), None);
        for curve in &CURVES {
            renderer.register_metric(curve.definition());
        }
        for name in [RANKS, STRAGGLERS, RESTARTS] {
            renderer.register_metric(MetricDefinition {
                metric_id: text_id(name),
                name: Arc::new(name.to_owned()),
                description: None,
                attributes: MetricAttributes::None,
            });
        }
        // The whole run is one epoch, so the dashboard's remaining time is that of the run.
        renderer.start(1, 1, Some(total), Some(&state.config.name));
        renderer.start_split("train", total);
        renderer.update_split(step);
        self.renderer = Some(renderer);
    }
}

impl Subsystem for Dashboard {
    fn name(&self) -> &str {
        "dashboard"
    }

    fn on_run_start(&mut self, run: &mut RunContext) -> Result<(), SubsystemError> {
        self.open(run.state);
        Ok(())
    }

    fn after_step(&mut self, _run: &mut RunContext, step: &StepReport) -> Result<LoopRequest, SubsystemError> {
        let Some(renderer) = &mut self.renderer else { return Ok(LoopRequest::default()) };
        if let Some(loss) = step.loss() {
            renderer.update_train(LOSS.point(f64::from(loss)));
        }
        renderer.update_train(LEARNING_RATE.point(step.learning_rate));
        renderer.update_train(GRAD_NORM.point(step.grad_norm));
        renderer.update_train(THROUGHPUT.point(step.num_tokens as f64 / step.seconds));
        renderer.update_train(STEP_TIME.point(step.seconds * 1e3));
        self.health.refresh(step.iteration);
        for (name, text) in self.health.lines() {
            let entry = MetricEntry::new(text_id(name), SerializedEntry::new(text.clone(), text));
            renderer.update_train(MetricState::Generic(entry));
        }
        renderer.update_split(step.iteration as usize);
        if self.interrupter.should_stop() {
            self.cancel.cancel();
        }
        Ok(LoopRequest::default())
    }

    fn on_evaluation(
        &mut self,
        _run: &mut RunContext,
        report: &EvaluationReport,
    ) -> Result<LoopRequest, SubsystemError> {
        let Some(renderer) = &mut self.renderer else { return Ok(LoopRequest::default()) };
        if let Some(loss) = report.loss() {
            renderer.update_valid(LOSS.point(f64::from(loss)));
        }
        if let Some(bits) = report.bits_per_byte {
            renderer.update_valid(BITS_PER_BYTE.point(bits));
        }
        Ok(LoopRequest::default())
    }

    fn after_save(&mut self, _run: &mut RunContext, _folder: &Path) -> Result<(), SubsystemError> {
        if let Some(renderer) = &mut self.renderer {
            renderer.log_event_training("checkpoints".to_owned());
        }
        Ok(())
    }

    fn on_run_end(&mut self, _run: &mut RunContext, _end: TrainEnd<'_>) -> Result<(), SubsystemError> {
        self.renderer = None;
        Ok(())
    }
}

/// Keeps the last lines written to it until the terminal is free again. Clones share the lines.
#[derive(Clone, Default)]
struct KeptLines(Arc<Mutex<VecDeque<String>>>);

impl KeptLines {
    const LIMIT: usize = 400;

    /// Prints and discards the kept lines.
    fn print(&self) {
        let lines = std::mem::take(&mut *self.0.lock().expect("nobody panics with the lines in hand"));
        for line in lines {
            crate::output::line(&line);
        }
    }
}

impl Write for KeptLines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut lines = self.0.lock().expect("nobody panics with the lines in hand");
        lines.extend(String::from_utf8_lossy(bytes).lines().map(str::to_owned));
        let surplus = lines.len().saturating_sub(Self::LIMIT);
        lines.drain(..surplus);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kept_lines_are_the_last_ones() {
        let kept = KeptLines::default();
        let mut writer = kept.clone();
        for i in 0..KeptLines::LIMIT + 3 {
            writeln!(writer, "line {i}").unwrap();
        }
        let lines = kept.0.lock().unwrap();
        assert_eq!((lines.len(), lines[0].as_str()), (KeptLines::LIMIT, "line 3"));
    }

    #[test]
    fn lines_about_ranks_name_the_slow_ones_of_this_run() {
        let folder = tempfile::tempdir().unwrap();
        let log_dir = folder.path().to_owned();
        let health = || Health { ranks: 2, restarts: 3, log_dir: log_dir.clone(), scores: None, read: None };
        let texts = |health: &Health| health.lines().map(|(_, text)| text);
        assert_eq!(texts(&health()), ["2", "no scores", "3"]);
        let rank = |rank, relative, is_slow| RankScore {
            rank,
            node: "a".into(),
            relative: Some(relative),
            individual: None,
            times: [1.0, 0.0, 0.0],
            is_slow,
        };
        let write = |is_slow| {
            let ranks = vec![rank(0, 0.98, false), rank(1, 0.4, is_slow)];
            RankScores { iteration: 8, ranks }.write(&log_dir).unwrap();
        };
        write(true);
        let (mut early, mut later) = (health(), health());
        early.refresh(7);
        later.refresh(8);
        assert_eq!(texts(&early), ["2", "no scores", "3"]);
        assert_eq!(texts(&later), ["2, slowest 1 (a, 0.40)", "1 (a, 0.40)", "3"]);
        write(false);
        later.read = None;
        later.refresh(9);
        assert_eq!(texts(&later)[1], "none");
    }

    #[test]
    fn a_value_that_is_not_finite_is_shown_but_not_drawn() {
        let MetricState::Numeric(entry, point) = LOSS.point(f64::NAN) else { panic!("a curve has numbers") };
        assert_eq!(entry.serialized_entry.formatted, "NaN");
        assert!(point.is_none());
        let MetricState::Numeric(entry, point) = THROUGHPUT.point(1234.5) else { panic!("a curve has numbers") };
        assert_eq!(entry.serialized_entry.formatted, "1234.5000 tokens/s");
        assert!(matches!(point, Some(NumericEntry::Value(value)) if value == 1234.5));
    }
}
