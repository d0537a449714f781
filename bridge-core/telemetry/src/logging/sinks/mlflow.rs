//! MLflow: every figure that TensorBoard shows, the settings, the recipe and, at the end, the loss
//! curve and the tokenizer (`logger.mlflow_*`).

use std::path::PathBuf;

use serde_json::{Value, json};

use super::tracked::{self, now};
use crate::logging::MetricValue;
use crate::logging::record::{Record, RunEnd, RunStart, SaveRecord};
use crate::logging::sink::{OpenError, Opened, Sink, SinkContext, SinkError};
use crate::logging::tracker::{Item, MlFlow, Target, Tracker, number};
use bridge_config::{diff_from_defaults, redacted, redacted_value};

const NAME: &str = "mlflow";
const KEY: &str = "logger.mlflow_tracking_uri";

struct MlFlowSink {
    tracker: Tracker,
    /// Steps between figures.
    interval: u64,
    settings: Vec<(String, String)>,
    recipe: String,
    /// Files that are sent at the end if they exist: names there and here.
    files: Vec<(String, PathBuf)>,
    /// Folder of the checkpoints.
    saved: Option<PathBuf>,
}

pub(super) fn open(context: &SinkContext) -> Opened {
    let (config, logger) = (context.config, &context.config.logger);
    let Some(experiment) = logger.mlflow_experiment.clone() else {
        return Ok(None);
    };
    let refused = |message: String| OpenError::Setting { key: KEY, message };
    let uri = logger.mlflow_tracking_uri.clone().or_else(|| std::env::var("MLFLOW_TRACKING_URI").ok());
    let uri = uri.ok_or_else(|| refused("is not given, nor is MLFLOW_TRACKING_URI: where is the server?".into()))?;
    if !(uri.starts_with("http://") || uri.starts_with("https://")) {
        return Err(refused(format!(
            "{:?} is no server; expected http:// or https://, such as http://127.0.0.1:5000",
            redacted(&uri)
        )));
    }
    let target = Target {
        uri,
        experiment,
        run_name: logger.mlflow_run_name.clone().unwrap_or_else(|| config.name.clone()),
        tags: logger.mlflow_tags.clone().unwrap_or_default(),
    };
    let safe = |name: &str, value: &str| redacted_value(&format!("logger.mlflow_tags.{name}"), value).into_owned();
    let tags = target.tags.iter().map(|(name, value)| (name.clone(), safe(name, value))).collect();
    let known = json!(Target { uri: redacted(&target.uri).into_owned(), tags, ..target.clone() });
    let tracker = Tracker::open(NAME, &logger.log_dir, context.run, known, Box::new(MlFlow::new(target)));
    let tracker = tracker.map_err(|error| OpenError::log("the spool of mlflow", error))?;
    let difference = diff_from_defaults(config.recipe());
    Ok(Some(Box::new(MlFlowSink {
        tracker,
        interval: logger.tensorboard_log_interval as u64,
        settings: difference
            .into_iter()
            .map(|d| (d.key, d.right.map_or_else(String::new, |value| value.to_inline())))
            .collect(),
        recipe: config.to_toml(),
        files: tracked::files(config),
        saved: config.checkpoint.save.clone(),
    })))
}

impl MlFlowSink {
    /// The names and values of a record.
    fn values(&self, record: &Record) -> Vec<(String, Value)> {
        let values = tracked::values(record, self.interval).into_iter();
        let named = |(tag, value): (String, MetricValue)| {
            Some((tracked::of_validation(record.kind, &tag), number(value.number()?)))
        };
        values.filter_map(named).collect()
    }
}

impl Sink for MlFlowSink {
    fn name(&self) -> &str {
        NAME
    }

    fn on_run_start(&mut self, _start: &RunStart) -> Result<(), SinkError> {
        let begin = Item::Begin { time: now(), settings: std::mem::take(&mut self.settings) };
        self.tracker.add(&begin)?;
        let content = std::mem::take(&mut self.recipe);
        self.tracker.add(&Item::Text { name: "recipe.toml".into(), content })
    }

    fn on_record(&mut self, record: &Record) -> Result<(), SinkError> {
        let values = self.values(record);
        if values.is_empty() {
            return Ok(());
        }
        self.tracker.add(&Item::Figures { time: now(), step: record.iteration, values })
    }

    fn on_save(&mut self, save: &SaveRecord) -> Result<(), SinkError> {
        let Some((name, value)) = tracked::last_checkpoint(self.saved.as_deref(), save) else {
            return Ok(());
        };
        self.tracker.add(&Item::Tag { name: name.into(), value })
    }

    fn on_run_end(&mut self, end: &mut RunEnd) -> Result<(), SinkError> {
        let (state, _) = end.ending.name();
        let files = self.files.drain(..).filter(|(_, path)| path.is_file());
        let files = files.map(|(name, path)| Item::File { name, path });
        let last = files.chain([Item::End { time: now(), state: state.into() }]);
        // All files are tried; the first failure is reported.
        let added: Vec<Result<(), SinkError>> = last.map(|item| self.tracker.add(&item)).collect();
        end.warnings.extend(self.tracker.close());
        added.into_iter().collect()
    }
}
