//! Records for sinks: figures of a step or an evaluation, and events of checkpoints. A figure is
//! declared once, with every place where it shows; sinks iterate over the figures. This file does
//! not define formats of sinks.

use std::borrow::Cow;
use std::fmt;

use serde::Serialize;

use super::json_value::MetricValue;
use super::terminal::Column;

/// A number that a run tells, with the places where it shows. Sinks that show everything go by
/// `name` and `labels`.
#[derive(Clone, Debug, PartialEq)]
#[must_use]
pub struct Figure {
    /// Name, in snake case.
    pub name: Cow<'static, str>,
    /// Unit, such as `seconds`; empty for figures without one.
    pub unit: &'static str,
    /// One sentence about it, without a full stop.
    pub help: &'static str,
    /// The value.
    pub value: MetricValue,
    /// True if it is a sum since the run began, over all its jobs, which never falls.
    pub is_counter: bool,
    /// True if it describes all steps since the last console line.
    pub is_of_interval: bool,
    /// Tells figures of one name apart: names and values.
    pub labels: Vec<(&'static str, String)>,
    /// The value under `name` in `metrics.jsonl`, where it is there.
    pub file: Option<MetricValue>,
    /// Name of the curve in TensorBoard.
    pub board: Option<String>,
    /// True if there is a second curve over the samples consumed so far.
    pub has_twin: bool,
    /// The text on the console line. Parts of lines are printed in the order of their numbers.
    pub line: Option<(u8, String)>,
    /// The column of the short line that people see on a terminal.
    pub short: Option<(u8, Column)>,
    /// The key in the console's JSON line.
    pub json: Option<(u8, Cow<'static, str>)>,
}

impl Figure {
    /// A gauge of a record that shows nowhere yet.
    pub fn new(
        name: impl Into<Cow<'static, str>>,
        unit: &'static str,
        help: &'static str,
        value: impl Into<MetricValue>,
    ) -> Self {
        Self {
            name: name.into(),
            unit,
            help,
            value: value.into(),
            is_counter: false,
            is_of_interval: false,
            labels: Vec::new(),
            file: None,
            board: None,
            has_twin: false,
            line: None,
            short: None,
            json: None,
        }
    }

    /// The figure is a sum that only grows.
    pub fn counter(mut self) -> Self {
        self.is_counter = true;
        self
    }

    /// The figure is of all steps since the last console line.
    pub fn of_interval(mut self) -> Self {
        self.is_of_interval = true;
        self
    }

    /// Figures that have the same names in TensorBoard, after `prefix`.
    pub fn on_board<N: Into<String>>(
        help: &'static str,
        prefix: &str,
        figures: impl IntoIterator<Item = (N, f64)>,
    ) -> Vec<Self> {
        let figure = |(name, value): (N, f64)| {
            let name = name.into();
            let tag = format!("{prefix}{name}");
            Self::new(name, "", help, value).board(tag)
        };
        figures.into_iter().map(figure).collect()
    }

    /// Adds a label.
    pub fn label(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.labels.push((name, value.into()));
        self
    }

    /// Shows it in `metrics.jsonl`.
    pub fn file(self) -> Self {
        let value = self.value.clone();
        self.file_as(value)
    }

    /// Shows `value` in its place in `metrics.jsonl`: rounded, say.
    pub fn file_as(mut self, value: impl Into<MetricValue>) -> Self {
        self.file = Some(value.into());
        self
    }

    /// Shows it in TensorBoard, over steps and over samples.
    pub fn board(mut self, tag: impl Into<String>) -> Self {
        (self.board, self.has_twin) = (Some(tag.into()), true);
        self
    }

    /// Shows it in TensorBoard, over steps only.
    pub fn board_of_steps(mut self, tag: impl Into<String>) -> Self {
        self.board = Some(tag.into());
        self
    }

    /// Shows `text` on the console line.
    pub fn line(mut self, place: u8, text: String) -> Self {
        self.line = Some((place, text));
        self
    }

    /// Shows `text` on the short line of a terminal. Where that has no room, columns of less
    /// `weight` give way first.
    pub fn short(mut self, place: u8, weight: u8, text: String) -> Self {
        self.short = Some((place, Column { text, weight }));
        self
    }

    /// Shows it in the console's JSON line.
    pub fn json(mut self, place: u8, key: impl Into<Cow<'static, str>>) -> Self {
        self.json = Some((place, key.into()));
        self
    }

    /// Takes it off `metrics.jsonl`, TensorBoard and the console.
    pub fn hide(&mut self) {
        (self.file, self.board, self.line, self.short, self.json) = (None, None, None, None, None);
    }
}

/// Data held out from training.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Split {
    /// For evaluation while training.
    Valid,
    /// For evaluation after training.
    Test,
}

impl Split {
    /// Name, for messages and TensorBoard.
    pub fn name(self) -> &'static str {
        match self {
            Self::Valid => "validation",
            Self::Test => "test",
        }
    }
}

/// When an evaluation took place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Occasion {
    /// Between two steps.
    DuringTraining,
    /// At the end of the run.
    AfterTraining,
}

/// Event that a record describes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordKind {
    /// A training step.
    Train,
    /// An evaluation.
    Evaluation(Split, Occasion),
}

impl RecordKind {
    /// Name in `metrics.jsonl`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Train => "train",
            Self::Evaluation(Split::Valid, _) => "valid",
            Self::Evaluation(Split::Test, _) => "test",
        }
    }
}

/// All figures of a step or an evaluation, in their order in `metrics.jsonl`.
#[derive(Clone, Debug, PartialEq)]
pub struct Record {
    /// Event that the record describes.
    pub kind: RecordKind,
    /// Number of the step, from 1; of an evaluation that of the step before it.
    pub iteration: u64,
    /// Samples trained on so far.
    pub consumed_samples: u64,
    /// True if a console line about steps is due.
    pub ends_interval: bool,
    /// The figures.
    pub figures: Vec<Figure>,
}

impl Record {
    /// The figures that are due where figures of steps are shown each `interval` steps.
    pub(super) fn due(&self, interval: u64) -> impl Iterator<Item = &Figure> {
        let is_due = self.kind != RecordKind::Train || self.iteration.is_multiple_of(interval);
        self.figures.iter().filter(move |figure| is_due || figure.is_of_interval)
    }

    /// The number of the figure `name`, if it is there and has no labels.
    pub fn number(&self, name: &str) -> Option<f64> {
        let is_it = |figure: &&Figure| figure.name == name && figure.labels.is_empty();
        self.figures.iter().find(is_it).and_then(|figure| figure.value.number())
    }

    /// The fields of the record's line in `metrics.jsonl`; `None` if the file shows none of its
    /// figures.
    pub fn fields(&self) -> Option<Vec<(String, MetricValue)>> {
        let shown = |figure: &Figure| Some((figure.name.to_string(), figure.file.clone()?));
        let head = [("kind".to_owned(), self.kind.name().into()), ("iteration".to_owned(), self.iteration.into())];
        let fields: Vec<_> = head.into_iter().chain(self.figures.iter().filter_map(shown)).collect();
        (fields.len() > 2).then_some(fields)
    }
}

/// State at the start of training.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RunStart {
    /// Iterations done before.
    pub iteration: u64,
    /// Floating-point operations done before.
    pub flops: f64,
    /// Iterations that will be done in all, if any is left to train.
    pub train_iters: Option<u64>,
}

/// Stage of a save.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SaveStage {
    /// On disk; training waited for it.
    Saved,
    /// Begun in the background.
    Begun,
    /// Begun before, and on disk now.
    Ended,
}

/// A checkpoint that is saved.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SaveRecord {
    /// Iterations completed in it.
    pub iteration: u64,
    /// Stage of the save.
    pub stage: SaveStage,
    /// Floating-point operations of all jobs so far.
    pub flops: f64,
    /// Tokens of all jobs so far.
    pub tokens: u64,
}

/// End of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The run finished its last iteration, or a subsystem ended training.
    Finished,
    /// The run was stopped early, for this reason.
    Stopped(String),
    /// The run failed with this error.
    Failed(String),
}

impl Ending {
    /// Name in files and trackers, and the reason if there is one.
    pub fn name(&self) -> (&'static str, Option<&str>) {
        match self {
            Self::Finished => ("finished", None),
            Self::Stopped(why) => ("stopped", Some(why)),
            Self::Failed(why) => ("failed", Some(why)),
        }
    }
}

/// The end of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunEnd {
    /// End of the run.
    pub ending: Ending,
    /// Iterations done.
    pub iteration: u64,
    /// Output that sinks before this one could not write.
    pub missing: Option<String>,
    /// Warnings of a sink about its end; the console prints them.
    pub warnings: Vec<String>,
}

/// Importance of a message, with the numbers of `logger.logging_level`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
#[expect(missing_docs, reason = "the names say it")]
pub enum LogLevel {
    Debug = 10,
    Info = 20,
    Warning = 30,
    Error = 40,
}

impl LogLevel {
    /// The number used in configs.
    pub fn number(self) -> u32 {
        self as u32
    }
}

impl fmt::Display for LogLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}
