//! Trackers: servers that a run tells its figures. Everything goes to a spool on disk first, from
//! where a thread sends it: a server that is down, slow or refuses costs the run nothing, and the
//! remaining items can be sent later.

mod http;
mod mlflow;
mod otlp;
mod sender;
mod service;
mod spool;

use std::path::Path;

use serde_json::{Value, json};

use super::MetricValue;
pub(super) use mlflow::{MlFlow, NAME as MLFLOW, Target};
pub(super) use otlp::{NAME as OTLP, Otlp, OtlpTarget};
pub(super) use sender::Tracker;
pub(super) use service::Item;
pub use service::Sent;
use spool::Spool;

/// Makes a tracker's client of where it was sent to.
type Connect = fn(Value) -> serde_json::Result<Box<dyn service::Service>>;

/// Sends what the run in the log folder `folder` has left for its trackers; nothing where it has
/// none.
///
/// # Errors
/// A spool or its state file that cannot be read.
pub fn send_left(folder: &Path) -> Result<Vec<Sent>, String> {
    let trackers: [(&'static str, Connect); 2] = [
        (MLFLOW, |target| Ok(Box::new(MlFlow::new(serde_json::from_value(target)?)))),
        (OTLP, |target| Ok(Box::new(Otlp::new(serde_json::from_value(target)?)))),
    ];
    let mut sent = Vec::new();
    for (name, connect) in trackers {
        for place in spool::places(folder, name).map_err(|error| format!("{}: {error}", folder.display()))? {
            let problem = |error: std::io::Error| format!("{}: {error}", place.display());
            let known = spool::read_known(&place).map_err(problem)?;
            let service = connect(known.target.clone())
                .map_err(|error| format!("{}: what is known of the tracker is damaged: {error}", place.display()))?;
            let spool = Spool::open(&place).map_err(problem)?;
            sent.push(sender::send_all(name, service, &spool, known).map_err(problem)?);
        }
    }
    Ok(sent)
}

/// A number as JSON; what is not finite as the text that servers take for it.
pub(super) fn number(value: f64) -> Value {
    json!(MetricValue::F64(value))
}

#[cfg(test)]
mod tests;
