//! The sinks that recipes can ask for, a file each. A new one is a file with `open`, and its line
//! in `RECIPE`.

mod comet;
mod console;
mod lines;
mod metrics_jsonl;
mod mlflow;
mod otlp;
mod plot;
mod progress_log;
#[cfg(feature = "prometheus")]
mod prometheus;
mod rank_log;
mod run_record;
mod tensor_table;
mod tensorboard;
mod tracked;
mod train_log;
mod wandb;

use super::sink::{OpenError, Opened, Sink, SinkContext};

pub use console::{ConsoleSink, LogFormat, Verbosity};
pub use lines::{LogEvent, timestamp};
pub(super) use metrics_jsonl::each_record;
pub use rank_log::RankLog;
pub use run_record::{RunRecord, read_record};

/// Opens a sink where the recipe asks for it.
type Open = fn(&SinkContext) -> Opened;

const RECIPE: &[Open] = &[
    #[cfg(feature = "prometheus")]
    prometheus::open,
    #[cfg(not(feature = "prometheus"))]
    refuse_prometheus,
    metrics_jsonl::open,
    tensorboard::open,
    progress_log::open,
    plot::open,
    // After what they send at the end.
    mlflow::open,
    otlp::open,
    wandb::open,
    comet::open,
    train_log::open,
    run_record::open,
    tensor_table::open,
];

/// Refuses `logger.prometheus_addr`: this build has no endpoint.
#[cfg(not(feature = "prometheus"))]
fn refuse_prometheus(context: &SinkContext) -> Opened {
    if context.config.logger.prometheus_addr.is_none() {
        return Ok(None);
    }
    let message = "this build has no endpoint for Prometheus; build with `--features bridge-cli/prometheus`".to_owned();
    Err(OpenError::Setting { key: "logger.prometheus_addr", message })
}

/// Opens the sinks that the recipe asks for.
///
/// # Errors
/// The first that cannot be opened.
pub fn open_sinks(context: &SinkContext) -> Result<Vec<Box<dyn Sink>>, OpenError> {
    RECIPE.iter().filter_map(|open| open(context).transpose()).collect()
}
