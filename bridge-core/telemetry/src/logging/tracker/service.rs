//! Items for a tracker, and the contract of its client.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Item to send. Times are milliseconds since 1970, those of spans nanoseconds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "item", rename_all = "snake_case")]
pub enum Item {
    /// The run begins, or goes on. Settings are those that differ from their defaults.
    Begin { time: u64, settings: Vec<(String, String)> },
    /// Figures of a step, by the tracker's names. What is not finite is a text.
    Figures { time: u64, step: u64, values: Vec<(String, Value)> },
    /// Something that took time. Attributes that are not finite are texts.
    Span { name: String, start: u64, end: u64, attributes: Vec<(String, Value)> },
    /// Something that can be said of the run.
    Tag { name: String, value: String },
    /// A text as a file.
    Text { name: String, content: String },
    /// A file, as it is when it is sent. Its name on the server may have folders.
    File { name: String, path: std::path::PathBuf },
    /// The run is over: `finished`, `stopped` or `failed`.
    End { time: u64, state: String },
}

/// State of a run at a tracker, in a file beside the spool.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Known {
    /// Name of the run, which a run that resumes it has too.
    pub run: String,
    /// Bytes of the spool that are sent.
    pub sent: u64,
    /// Identifiers that the server gave to the run and its parts.
    pub ids: std::collections::BTreeMap<String, String>,
    /// Destination, for sending later.
    pub target: Value,
}

/// Why something was not sent.
#[derive(Debug, thiserror::Error)]
pub enum SendError {
    /// A retry may succeed.
    #[error("{0}")]
    Later(String),
    /// Retries cannot succeed.
    #[error("{0}")]
    Never(String),
}

/// A server that receives records of runs.
pub trait Service: Send {
    /// Sends items from the first on, and says how many are sent: at least one, and more where they
    /// fit into a request. An error says why the first one is not sent.
    fn send(&mut self, known: &mut Known, items: &[Item]) -> Result<usize, SendError>;
}

/// Result of sending the rest of a run's spool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Sent {
    /// The tracker.
    pub tracker: &'static str,
    /// Items that were sent.
    pub sent: usize,
    /// Items that the server refused, and why the first one.
    pub refused: (usize, Option<String>),
    /// Why some are left, if any are.
    pub left: Option<String>,
}
