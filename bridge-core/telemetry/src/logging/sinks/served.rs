//! Trackers with a server. MLflow gets every figure that TensorBoard shows, the settings, the
//! recipe, and at the end the loss curve and the tokenizer (`logger.mlflow_*`). OpenTelemetry gets
//! the figures as gauges and a span for each step, at a collector (`logger.otlp_endpoint`).

use std::path::PathBuf;

use serde_json::{Value, json};

use super::tracked::{self, now};
use crate::logging::record::{Record, RecordKind, RunEnd, RunStart, SaveRecord};
use crate::logging::sink::{OpenError, Opened, Sink, SinkContext, SinkError};
use crate::logging::tracker::{Item, MLFLOW, MlFlow, OTLP, Otlp, OtlpTarget, Target, Tracker, number};
use bridge_config::{diff_from_defaults, redacted, redacted_value};

struct Served {
    name: &'static str,
    tracker: Tracker,
    /// Steps between figures.
    interval: u64,
    settings: Vec<(String, String)>,
    recipe: Option<String>,
    /// True if steps are spans.
    has_spans: bool,
    /// Files that are sent at the end if they exist: names there and here.
    files: Vec<(String, PathBuf)>,
    /// Folder of the checkpoints.
    saved: Option<PathBuf>,
}

/// Refuses the address of `what` in the setting `key` if it is not one of HTTP.
fn check(address: &str, key: &'static str, what: &str, port: u16) -> Result<(), OpenError> {
    if address.starts_with("http://") || address.starts_with("https://") {
        return Ok(());
    }
    let shown = redacted(address);
    let message = format!("{shown:?} is no {what}; expected http:// or https://, such as http://127.0.0.1:{port}");
    Err(OpenError::Setting { key, message })
}

/// Why the spool of a tracker cannot be opened.
fn spool_error(name: &str) -> impl FnOnce(std::io::Error) -> OpenError {
    move |error| OpenError::log(format!("the spool of {name}"), error)
}

pub(super) fn open_mlflow(context: &SinkContext) -> Opened {
    let (config, logger) = (context.config, &context.config.logger);
    let Some(experiment) = logger.mlflow_experiment.clone() else { return Ok(None) };
    let key = "logger.mlflow_tracking_uri";
    let uri = logger.mlflow_tracking_uri.clone().or_else(|| std::env::var("MLFLOW_TRACKING_URI").ok());
    let missing = "is not given, nor is MLFLOW_TRACKING_URI: where is the server?";
    let uri = uri.ok_or_else(|| OpenError::Setting { key, message: missing.into() })?;
    check(&uri, key, "server", 5000)?;
    let target = Target {
        uri,
        experiment,
        run_name: logger.mlflow_run_name.clone().unwrap_or_else(|| config.name.clone()),
        tags: logger.mlflow_tags.clone().unwrap_or_default(),
    };
    let safe = |name: &str, value: &str| redacted_value(&format!("logger.mlflow_tags.{name}"), value).into_owned();
    let tags = target.tags.iter().map(|(name, value)| (name.clone(), safe(name, value))).collect();
    let known = json!(Target { uri: redacted(&target.uri).into_owned(), tags, ..target.clone() });
    let tracker = Tracker::open(MLFLOW, &logger.log_dir, context.run, known, Box::new(MlFlow::new(target)));
    let settings = diff_from_defaults(config.recipe()).into_iter();
    Ok(Some(Box::new(Served {
        name: MLFLOW,
        tracker: tracker.map_err(spool_error(MLFLOW))?,
        interval: logger.tensorboard_log_interval as u64,
        settings: settings.map(|d| (d.key, d.right.map_or_else(String::new, |value| value.to_inline()))).collect(),
        recipe: Some(config.to_toml()),
        has_spans: false,
        files: tracked::files(config),
        saved: config.checkpoint.save.clone(),
    })))
}

pub(super) fn open_otlp(context: &SinkContext) -> Opened {
    let (config, logger) = (context.config, &context.config.logger);
    let Some(endpoint) = logger.otlp_endpoint.clone() else { return Ok(None) };
    check(&endpoint, "logger.otlp_endpoint", "collector", 4318)?;
    let target = OtlpTarget { endpoint, recipe: config.name.clone() };
    let known = json!(OtlpTarget { endpoint: redacted(&target.endpoint).into_owned(), ..target.clone() });
    let tracker = Tracker::open(OTLP, &logger.log_dir, context.run, known, Box::new(Otlp::new(target)));
    Ok(Some(Box::new(Served {
        name: OTLP,
        tracker: tracker.map_err(spool_error(OTLP))?,
        interval: logger.tensorboard_log_interval as u64,
        settings: Vec::new(),
        recipe: None,
        has_spans: true,
        files: Vec::new(),
        saved: None,
    })))
}

/// The span of a step that has just ended.
fn span(record: &Record) -> Option<Item> {
    let seconds = record.number("seconds").filter(|_| record.kind == RecordKind::Train)?;
    let end = now() * 1_000_000;
    let named = ["loss", "grad_norm", "data_seconds", "tokens_per_second"];
    let figures = named.iter().filter_map(|name| Some(((*name).to_owned(), number(record.number(name)?))));
    let attributes = [("iteration".to_owned(), Value::from(record.iteration))].into_iter().chain(figures).collect();
    Some(Item::Span { name: "step".into(), start: end.saturating_sub((seconds * 1e9) as u64), end, attributes })
}

impl Served {
    /// Adds all items; the first failure is reported.
    fn add(&self, items: impl IntoIterator<Item = Item>) -> Result<(), SinkError> {
        let added: Vec<Result<(), SinkError>> = items.into_iter().map(|item| self.tracker.add(&item)).collect();
        added.into_iter().collect()
    }
}

impl Sink for Served {
    fn name(&self) -> &str {
        self.name
    }

    fn on_run_start(&mut self, _start: &RunStart) -> Result<(), SinkError> {
        let begin = Item::Begin { time: now(), settings: std::mem::take(&mut self.settings) };
        let recipe = self.recipe.take().map(|content| Item::Text { name: "recipe.toml".into(), content });
        self.tracker.add(&begin)?;
        self.add(recipe)
    }

    fn on_record(&mut self, record: &Record) -> Result<(), SinkError> {
        let values = tracked::values(record, self.interval).into_iter();
        let values = values
            .filter_map(|(tag, value)| Some((tracked::of_validation(record.kind, &tag), number(value.number()?))));
        let values: Vec<(String, Value)> = values.collect();
        let figures = (!values.is_empty()).then(|| Item::Figures { time: now(), step: record.iteration, values });
        let span = if self.has_spans { span(record) } else { None };
        self.add(figures.into_iter().chain(span))
    }

    fn on_save(&mut self, save: &SaveRecord) -> Result<(), SinkError> {
        let saved = tracked::last_checkpoint(self.saved.as_deref(), save);
        self.add(saved.map(|(name, value)| Item::Tag { name: name.into(), value }))
    }

    fn on_run_end(&mut self, end: &mut RunEnd) -> Result<(), SinkError> {
        let (state, _) = end.ending.name();
        let files = std::mem::take(&mut self.files).into_iter().filter(|(_, path)| path.is_file());
        let files = files.map(|(name, path)| Item::File { name, path });
        let added = self.add(files.chain([Item::End { time: now(), state: state.into() }]));
        end.warnings.extend(self.tracker.close());
        added
    }
}
