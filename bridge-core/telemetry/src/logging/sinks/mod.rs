//! The sinks that recipes can ask for, a file each. A new one is a file with `open`, and its line
//! in `RECIPE`.

mod comet;
mod console;
mod lines;
mod metrics_jsonl;
mod plot;
mod progress_log;
#[cfg(feature = "prometheus")]
mod prometheus;
mod run_record;
#[cfg(feature = "trackers")]
mod served;
mod tensor_table;
mod tensorboard;
mod tracked;
mod train_log;
mod wandb;

use super::sink::{OpenError, Opened, Sink, SinkContext};

pub use console::{ConsoleSink, LogFormat, Verbosity};
pub use lines::{LogEvent, timestamp};
pub(super) use metrics_jsonl::each_record;
pub use run_record::{RunRecord, read_record};
pub use train_log::RankLog;

/// Opens a sink where the recipe asks for it.
type Open = fn(&SinkContext) -> Opened;

const RECIPE: &[Open] = &[
    #[cfg(feature = "prometheus")]
    prometheus::open,
    #[cfg(not(feature = "prometheus"))]
    |context| refuse(context.config.logger.prometheus_addr.is_some(), "logger.prometheus_addr", "prometheus"),
    metrics_jsonl::open,
    tensorboard::open,
    progress_log::open,
    plot::open,
    // After the plots, which trackers send at the end.
    #[cfg(feature = "trackers")]
    served::open_mlflow,
    #[cfg(feature = "trackers")]
    served::open_otlp,
    #[cfg(not(feature = "trackers"))]
    |context| refuse(context.config.logger.mlflow_experiment.is_some(), "logger.mlflow_experiment", "trackers"),
    #[cfg(not(feature = "trackers"))]
    |context| refuse(context.config.logger.otlp_endpoint.is_some(), "logger.otlp_endpoint", "trackers"),
    wandb::open,
    comet::open,
    train_log::open,
    run_record::open,
    tensor_table::open,
];

/// Refuses the setting `key` if it is given, because this build lacks its sink's cargo feature.
#[cfg(not(all(feature = "prometheus", feature = "trackers")))]
fn refuse(is_given: bool, key: &'static str, feature: &str) -> Opened {
    if !is_given {
        return Ok(None);
    }
    let message = format!(
        "needs the cargo feature `{feature}`, which this build does not have; build with `--features bridge-cli/{feature}`"
    );
    Err(OpenError::Setting { key, message })
}

/// Opens the sinks that the recipe asks for.
///
/// # Errors
/// The first that cannot be opened.
pub fn open_sinks(context: &SinkContext) -> Result<Vec<Box<dyn Sink>>, OpenError> {
    RECIPE.iter().filter_map(|open| open(context).transpose()).collect()
}
