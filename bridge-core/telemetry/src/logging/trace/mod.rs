//! Traces of steps, in the format of Chrome's trace viewer, which Perfetto opens: events, the file
//! of a rank, and merging of files. `summary` computes times; a subsystem of the run records.

mod summary;

use std::path::Path;
use std::{fmt, io};

use bridge_data::untrusted_io;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::files::{self, FileError};
pub use summary::{Moved, RankSummary, StepTimes, summarize};

/// The folder of a run's traces in its log folder.
pub const FOLDER: &str = "trace";

/// Larger files are not read.
const LARGEST: u64 = 4 << 30;

/// Part of a step that a span belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Part {
    /// A whole step.
    Step,
    /// Reading micro-batches, and bringing them to the device.
    Data,
    /// Forward passes.
    Forward,
    /// Forward passes that are repeated for backward.
    Recompute,
    /// Backward passes.
    Backward,
    /// Messages between the stages of a pipeline.
    Pipeline,
    /// The reduction of gradients after backward.
    Reduction,
    /// The update, with the norm of the gradients.
    Optimizer,
    /// Checkpoints.
    Save,
    /// Evaluations.
    Evaluation,
    /// All else that the loop does: losses, figures, logs, subsystems, looks whether to stop.
    Loop,
    /// A rank in a call of its communicators, which is mostly waiting for other ranks.
    Collective,
    /// An operation that goes on while the rank does other things.
    InFlight,
}

impl Part {
    /// Parts that the time of a step is divided into, in the order of tables. [`Self::Step`] is the
    /// rest, and [`Self::InFlight`] is not among them, since it overlaps with the others.
    pub const OF_STEPS: [Self; 12] = [
        Self::Data,
        Self::Forward,
        Self::Recompute,
        Self::Backward,
        Self::Pipeline,
        Self::Reduction,
        Self::Optimizer,
        Self::Collective,
        Self::Save,
        Self::Evaluation,
        Self::Loop,
        Self::Step,
    ];

    /// The part of a span of the loop.
    pub fn of_span(name: &str) -> Self {
        match name {
            "step" => Self::Step,
            "batch-generator" | "prepare-batches" => Self::Data,
            "forward-compute" => Self::Forward,
            "backward-compute" => Self::Backward,
            "forward-recv" | "forward-send" | "backward-recv" | "backward-send" => Self::Pipeline,
            "all-grads-sync" | "params-all-gather" => Self::Reduction,
            "layernorm-grads-all-reduce" | "embedding-grads-all-reduce" => Self::Reduction,
            "save-checkpoint" => Self::Save,
            "evaluate" => Self::Evaluation,
            "forward-backward" => Self::Loop,
            _ if name.ends_with("-forward") => Self::Forward,
            _ if name.ends_with("-recompute") => Self::Recompute,
            _ if name.ends_with("-backward") => Self::Backward,
            _ if name == "optimizer" || name.starts_with("optimizer-") => Self::Optimizer,
            _ => Self::Loop,
        }
    }
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

/// An event, with the names of the format.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Event {
    /// Name of the event.
    pub name: String,
    /// The part of a step; absent in events that name ranks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cat: Option<Part>,
    /// `X` for a span, `b` and `e` for begin and end of an asynchronous span, `M` for names.
    pub ph: Phase,
    /// Microseconds since tracing began on rank 0.
    #[serde(default)]
    pub ts: f64,
    /// Microseconds that it took.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dur: Option<f64>,
    /// Rank in the world.
    pub pid: u64,
    /// 0: a rank works on one thing at a time.
    #[serde(default)]
    pub tid: u64,
    /// Identifier that joins `b` and `e`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// `iteration`, `layer`, `microbatch`, `chunk`, `shapes`; of collectives `group`, `ranks`,
    /// `dtype`, `elements`, `bytes`, `root`.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub args: Map<String, Value>,
}

/// Type of an event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Phase {
    /// A span.
    #[default]
    X,
    /// Begin of an asynchronous span.
    #[serde(rename = "b")]
    Begins,
    /// End of an asynchronous span.
    #[serde(rename = "e")]
    Ends,
    /// The name of a rank.
    M,
}

impl Event {
    /// A span of a rank, in microseconds.
    pub fn span(name: impl Into<String>, part: Part, rank: usize, (ts, dur): (f64, f64)) -> Self {
        Self { name: name.into(), cat: Some(part), ts, dur: Some(dur), pid: rank as u64, ..Self::default() }
    }

    /// The name that viewers show for a rank.
    pub fn rank_name(rank: usize, name: &str) -> Self {
        let args = Map::from_iter([("name".to_owned(), Value::from(name))]);
        Self { name: "process_name".into(), ph: Phase::M, pid: rank as u64, args, ..Self::default() }
    }

    /// When it ended, in microseconds.
    pub fn end(&self) -> f64 {
        self.ts + self.dur.unwrap_or_default()
    }

    /// Argument of that name, as a number.
    pub fn number(&self, name: &str) -> Option<u64> {
        self.args.get(name)?.as_u64()
    }

    /// Argument of that name, as text.
    pub fn text(&self, name: &str) -> Option<&str> {
        self.args.get(name)?.as_str()
    }
}

/// A rank that was traced.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TracedRank {
    /// Rank in the world.
    pub rank: usize,
    /// Pipeline stage of the rank.
    pub stage: usize,
    /// The machine.
    pub node: String,
}

/// Metadata of a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header {
    /// Name of the run.
    pub run: String,
    /// Ranks of the run.
    pub world_size: usize,
    /// Ranks with events in this file.
    pub ranks: Vec<TracedRank>,
}

/// A trace of one rank or several.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Trace {
    /// Events of the ranks.
    #[serde(rename = "traceEvents")]
    pub events: Vec<Event>,
    /// Unit of times in viewers.
    #[serde(rename = "displayTimeUnit")]
    unit: String,
    /// Metadata of the trace.
    #[serde(rename = "otherData")]
    pub header: Header,
}

impl Trace {
    /// A trace of these events.
    pub fn new(header: Header, events: Vec<Event>) -> Self {
        Self { events, unit: "ms".into(), header }
    }

    /// Writes it to a file, in a folder that is made if need be.
    pub fn write(&self, path: &Path) -> io::Result<()> {
        files::replace(path, &serde_json::to_vec(self)?)
    }

    /// Reads a file.
    ///
    /// # Errors
    /// If it is not there, or not one that a run or `bridge trace` wrote.
    pub fn read(path: &Path) -> Result<Self, FileError> {
        let failed = |message: String| FileError::Damaged(format!("{}: {message}", path.display()));
        let bytes = untrusted_io::read(path, LARGEST).map_err(FileError::of(path))?;
        let trace: Self =
            serde_json::from_slice(&bytes).map_err(|error| failed(format!("not a trace of a run: {error}")))?;
        let is_number =
            |event: &Event| event.ts.is_finite() && event.dur.is_none_or(|dur| dur.is_finite() && dur >= 0.0);
        match trace.events.iter().find(|event| !is_number(event)) {
            None => Ok(trace),
            Some(event) => Err(failed(format!("the times of `{}` are none", event.name))),
        }
    }

    /// The events of all traces, sorted by start time.
    ///
    /// # Errors
    /// If the traces are of different runs, a rank is in two of them, or there is no
    /// trace.
    pub fn merge(traces: Vec<Self>) -> Result<Self, String> {
        let mut traces = traces.into_iter();
        let mut all = traces.next().ok_or("there is no trace")?;
        for trace in traces {
            let (header, found) = (&all.header, &trace.header);
            if (&header.run, header.world_size) != (&found.run, found.world_size) {
                return Err(format!(
                    "they are of different runs: `{}` on {} ranks and `{}` on {}",
                    header.run, header.world_size, found.run, found.world_size
                ));
            }
            if let Some(twice) =
                found.ranks.iter().find(|rank| header.ranks.iter().any(|known| known.rank == rank.rank))
            {
                return Err(format!("rank {} is in two of them", twice.rank));
            }
            all.header.ranks.extend(trace.header.ranks);
            all.events.extend(trace.events);
        }
        all.header.ranks.sort_by_key(|rank| rank.rank);
        all.events.sort_by(|a, b| (a.ph != Phase::M).cmp(&(b.ph != Phase::M)).then(a.ts.total_cmp(&b.ts)));
        Ok(all)
    }
}
