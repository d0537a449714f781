//! Items for a tracker, and the contract of its client.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Item to send.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "item", rename_all = "snake_case")]
pub enum Item {
    /// The run begins, or goes on.
    Begin {
        /// Milliseconds since 1970.
        time: u64,
        /// Settings that differ from their defaults, by key.
        settings: Vec<(String, String)>,
    },
    /// Figures of a step, by the tracker's names. What is not finite is a text.
    Figures {
        /// Milliseconds since 1970.
        time: u64,
        /// The step.
        step: u64,
        /// Names and values.
        values: Vec<(String, Value)>,
    },
    /// Something that took time.
    Span {
        /// Name of the span.
        name: String,
        /// Nanoseconds since 1970 at its beginning.
        start: u64,
        /// The same at its end.
        end: u64,
        /// Attributes of the span. Values that are not finite are texts.
        attributes: Vec<(String, Value)>,
    },
    /// Something that can be said of the run.
    Tag {
        /// Name of the parameter.
        name: String,
        /// Value of the parameter.
        value: String,
    },
    /// A text as a file.
    Text {
        /// The file's name there.
        name: String,
        /// Content of the file.
        content: String,
    },
    /// A file, as it is when it is sent.
    File {
        /// Name on the server, which may have folders.
        name: String,
        /// Path on this machine.
        path: std::path::PathBuf,
    },
    /// The run is over.
    End {
        /// Milliseconds since 1970.
        time: u64,
        /// End state: `finished`, `stopped` or `failed`.
        state: String,
    },
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
    /// It may work later.
    #[error("{0}")]
    Later(String),
    /// It will not, however often it is tried.
    #[error("{0}")]
    Never(String),
}

/// A server that takes what runs tell.
pub trait Service: Send {
    /// Sends items from the first on, and says how many are sent: at least one, and more where they
    /// fit into a request.
    ///
    /// # Errors
    /// Why the first one is not sent.
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
