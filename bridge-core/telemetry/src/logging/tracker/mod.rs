//! Trackers: servers that a run tells its figures. Everything goes to a spool on disk first, from
//! where a thread sends it: a server that is down, slow or refuses costs the run nothing, and what
//! is left can be sent later.

mod http;
mod mlflow;
mod otlp;
mod sender;
mod service;
mod spool;

use std::path::Path;

use serde_json::Value;

pub(super) use mlflow::{MlFlow, Target};
pub(super) use otlp::{NAME as OTLP, Otlp, OtlpTarget};
pub(super) use sender::Tracker;
pub(super) use service::Item;
pub use service::Sent;
use spool::Spool;

/// Sends what the run in the log folder `folder` has left for its trackers; nothing where it has
/// none.
///
/// # Errors
/// A spool, or what is known of it, that cannot be read.
pub fn send_left(folder: &Path) -> Result<Vec<Sent>, String> {
    let mut sent =
        send_left_of(folder, mlflow::NAME, |target| Ok(Box::new(MlFlow::new(serde_json::from_value(target)?))))?;
    sent.extend(send_left_of(folder, OTLP, |target| Ok(Box::new(Otlp::new(serde_json::from_value(target)?))))?);
    Ok(sent)
}

/// Makes a tracker's client of where it was sent to.
type Connect = fn(Value) -> serde_json::Result<Box<dyn service::Service>>;

fn send_left_of(folder: &Path, name: &'static str, connect: Connect) -> Result<Vec<Sent>, String> {
    let places = spool::places(folder, name).map_err(|error| format!("{}: {error}", folder.display()))?;
    let send = |place: &std::path::PathBuf| {
        let problem = |error: std::io::Error| format!("{}: {error}", place.display());
        let known = spool::read_known(place).map_err(problem)?;
        let service = connect(known.target.clone())
            .map_err(|error| format!("{}: what is known of the tracker is damaged: {error}", place.display()))?;
        let spool = Spool::open(place).map_err(problem)?;
        sender::send_all(name, service, &spool, known).map_err(problem)
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

#[cfg(test)]
mod tests;
