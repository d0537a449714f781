//! State and progress of a run, from its `run.json` and the last lines of its metrics: a few reads
//! for files of any size.

use std::path::Path;
use std::time::UNIX_EPOCH;

use bridge_data::untrusted_io;
use bridge_telemetry::logging::runs::{RunState, read_record, state_of};
use serde::Serialize;
use serde_json::{Map, Value};

use super::line::slowly;
use super::read_at;

/// Bytes that are read at the end of the metrics.
const END: u64 = 64 << 10;

/// A run, as its files have it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Head {
    /// Name of its recipe.
    pub name: String,
    /// Identity of the run.
    pub run: Option<String>,
    /// State of the run.
    pub state: RunState,
    /// Why it stopped or failed.
    pub why: Option<String>,
    /// Iterations done.
    pub iterations: u64,
    /// Iterations in all.
    pub train_iters: Option<u64>,
    /// Loss of the last iteration; a text where it is not finite.
    pub last_loss: Option<Value>,
    /// Tokens a second in the last iteration.
    pub tokens_per_second: Option<f64>,
    /// Seconds of the last iteration.
    pub seconds: Option<f64>,
    /// Ranks.
    pub world_size: Option<u64>,
    /// When its last job began, local time.
    pub started: Option<String>,
    /// When that ended.
    pub ended: Option<String>,
    /// When the metrics were last written, in seconds since 1970.
    pub written: Option<u64>,
    /// Problem with reading its files.
    pub problem: Option<String>,
    /// The resolved configuration, as TOML.
    #[serde(skip)]
    pub config: Option<String>,
}

/// Reads a summary of the run whose logs are in `folder`, from `run.json` and the last lines of its
/// metrics.
pub fn head(folder: &Path) -> Head {
    let (record, mut problem) = match folder.join("run.json").exists().then(|| read_record(folder)) {
        None => (None, None),
        Some(Ok(record)) => (Some(record), None),
        Some(Err(problem)) => (None, Some(problem)),
    };
    let path = folder.join("metrics.jsonl");
    let lines = last_lines(&path).unwrap_or_else(|error| {
        problem.get_or_insert(format!("{}: {error}", path.display()));
        Vec::new()
    });
    let is_train = |line: &&Map<String, Value>| line.get("kind").and_then(Value::as_str) == Some("train");
    let last = lines.iter().rev().find(is_train);
    let number = |key: &str| last.and_then(|line| line.get(key)?.as_f64());
    let modified = std::fs::metadata(&path).and_then(|metadata| metadata.modified()).ok();
    let name = folder.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    Head {
        name: record.as_ref().map_or(name, |record| record.name.clone()),
        run: lines.last().and_then(|line| Some(line.get("run")?.as_str()?.to_owned())),
        state: state_of(folder, record.as_ref()),
        why: record.as_ref().and_then(|record| record.why.clone()),
        iterations: last.and_then(|line| line.get("iteration")?.as_u64()).unwrap_or(0),
        train_iters: record.as_ref().map(|record| record.train_iters),
        last_loss: last.and_then(|line| line.get("loss").cloned()),
        tokens_per_second: number("tokens_per_second"),
        seconds: number("seconds"),
        world_size: record.as_ref().map(|record| record.world_size),
        started: record.as_ref().map(|record| record.started.clone()),
        ended: record.as_ref().and_then(|record| record.ended.clone()),
        written: modified.and_then(|time| Some(time.duration_since(UNIX_EPOCH).ok()?.as_secs())),
        problem,
        config: record.map(|record| record.config),
    }
}

/// The whole lines at the end of a file that are records.
fn last_lines(path: &Path) -> std::io::Result<Vec<Map<String, Value>>> {
    let (file, size) = untrusted_io::open(path)?;
    let length = size.min(END);
    let mut bytes = vec![0; usize::try_from(length).unwrap_or(0)];
    read_at(&file, &mut bytes, size - length)?;
    let whole = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
    Ok(bytes[..whole].split(|byte| *byte == b'\n').filter_map(slowly).collect())
}
