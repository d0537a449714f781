//! Trackers: servers that a run tells its figures. Everything goes to a spool on disk first, from where a thread sends it: a server that is down,
//! slow or refuses costs the run nothing, and what is left can be sent later.

mod http;
mod mlflow;
mod sender;
mod spool;

use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::Value;

pub(super) use mlflow::{MlFlow, Target};
pub(super) use sender::Tracker;
use spool::Spool;

/// What is to be sent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "item", rename_all = "snake_case")]
pub(super) enum Item {
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
    /// Something that can be said of the run.
    Tag {
        /// Its name.
        name: String,
        /// What is said.
        value: String,
    },
    /// A text as a file.
    Text {
        /// The file's name there.
        name: String,
        /// Its content.
        content: String,
    },
    /// A file, as it is when it is sent.
    File {
        /// Its name there, which may have folders.
        name: String,
        /// Where it is here.
        path: std::path::PathBuf,
    },
    /// The run is over.
    End {
        /// Milliseconds since 1970.
        time: u64,
        /// How: `finished`, `stopped` or `failed`.
        state: String,
    },
}

/// What a tracker knows of a run, in a file beside the spool.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Known {
    /// Name of the run, which a run that resumes it has too.
    pub run: String,
    /// How much of the spool is sent.
    pub sent: u64,
    /// What the server calls the run and its parts.
    pub ids: std::collections::BTreeMap<String, String>,
    /// Where it is sent to, for sending later.
    pub target: Value,
}

/// Why something was not sent.
#[derive(Debug, thiserror::Error)]
pub(super) enum SendError {
    /// It may work later.
    #[error("{0}")]
    Later(String),
    /// It will not, however often it is tried.
    #[error("{0}")]
    Never(String),
}

/// A server that takes what runs tell.
pub(super) trait Service: Send {
    /// Sends items from the first on, and says how many are sent: at least one, and more where they fit into a request.
    ///
    /// # Errors
    /// Why the first one is not sent.
    fn send(&mut self, known: &mut Known, items: &[Item]) -> Result<usize, SendError>;
}

/// What came of sending what a run had left.
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

/// Sends what the run in the log folder `folder` has left for its trackers; nothing where it has none.
///
/// # Errors
/// A spool, or what is known of it, that cannot be read.
pub fn send_left(folder: &Path) -> Result<Vec<Sent>, String> {
    let places = spool::places(folder, mlflow::NAME).map_err(|error| format!("{}: {error}", folder.display()))?;
    let send = |place: &std::path::PathBuf| {
        let problem = |error: std::io::Error| format!("{}: {error}", place.display());
        let known = spool::read_known(place).map_err(problem)?;
        let target: Target = serde_json::from_value(known.target.clone())
            .map_err(|error| format!("{}: what is known of the tracker is damaged: {error}", place.display()))?;
        let spool = Spool::open(place).map_err(problem)?;
        sender::send_all(mlflow::NAME, Box::new(MlFlow::new(target)), &spool, known).map_err(problem)
    };
    places.iter().map(send).collect()
}

/// A number as JSON; what is not finite as the text that servers take for it.
pub(super) fn number(value: f64) -> Value {
    let text = match value {
        _ if value.is_nan() => "NaN",
        f64::INFINITY => "Infinity",
        f64::NEG_INFINITY => "-Infinity",
        _ => return value.into(),
    };
    text.into()
}

/// Milliseconds since 1970.
pub(super) fn now() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
