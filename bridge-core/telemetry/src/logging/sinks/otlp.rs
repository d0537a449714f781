//! OpenTelemetry: every figure that TensorBoard shows as a gauge, and a span for each step, at a
//! collector (`logger.otlp_endpoint`).

use serde_json::{Value, json};

use super::tracked::{self, now};
use crate::logging::record::{Record, RecordKind, RunEnd, RunStart};
use crate::logging::sink::{OpenError, Opened, Sink, SinkContext, SinkError};
use crate::logging::tracker::{Item, OTLP, Otlp, OtlpTarget, Tracker, number};
use bridge_config::redacted;

const KEY: &str = "logger.otlp_endpoint";

struct OtlpSink {
    tracker: Tracker,
    /// Steps between figures.
    interval: u64,
}

pub(super) fn open(context: &SinkContext) -> Opened {
    let (config, logger) = (context.config, &context.config.logger);
    let Some(endpoint) = logger.otlp_endpoint.clone() else {
        return Ok(None);
    };
    if !(endpoint.starts_with("http://") || endpoint.starts_with("https://")) {
        let message = format!(
            "{:?} is no collector; expected http:// or https://, such as http://127.0.0.1:4318",
            redacted(&endpoint)
        );
        return Err(OpenError::Setting { key: KEY, message });
    }
    let target = OtlpTarget { endpoint, recipe: config.name.clone() };
    let known = json!(OtlpTarget { endpoint: redacted(&target.endpoint).into_owned(), ..target.clone() });
    let tracker = Tracker::open(OTLP, &logger.log_dir, context.run, known, Box::new(Otlp::new(target)));
    let tracker = tracker.map_err(|error| OpenError::log("the spool of otlp", error))?;
    Ok(Some(Box::new(OtlpSink { tracker, interval: logger.tensorboard_log_interval as u64 })))
}

/// The span of a step that has just ended.
fn step(record: &Record) -> Option<Item> {
    let seconds = record.number("seconds").filter(|_| record.kind == RecordKind::Train)?;
    let end = now() * 1_000_000;
    let named = ["loss", "grad_norm", "data_seconds", "tokens_per_second"];
    let figures = named.iter().filter_map(|name| Some(((*name).to_owned(), number(record.number(name)?))));
    let attributes = [("iteration".to_owned(), Value::from(record.iteration))].into_iter().chain(figures).collect();
    Some(Item::Span { name: "step".into(), start: end.saturating_sub((seconds * 1e9) as u64), end, attributes })
}

impl Sink for OtlpSink {
    fn name(&self) -> &str {
        OTLP
    }

    fn on_run_start(&mut self, _start: &RunStart) -> Result<(), SinkError> {
        self.tracker.add(&Item::Begin { time: now(), settings: Vec::new() })
    }

    fn on_record(&mut self, record: &Record) -> Result<(), SinkError> {
        let values = tracked::values(record, self.interval).into_iter();
        let named = |(tag, value): (String, crate::logging::MetricValue)| {
            Some((tracked::of_validation(record.kind, &tag), number(value.number()?)))
        };
        let values: Vec<(String, Value)> = values.filter_map(named).collect();
        let figures = (!values.is_empty()).then(|| Item::Figures { time: now(), step: record.iteration, values });
        let added: Vec<_> = figures.iter().chain(step(record).as_ref()).map(|item| self.tracker.add(item)).collect();
        added.into_iter().collect()
    }

    fn on_run_end(&mut self, end: &mut RunEnd) -> Result<(), SinkError> {
        let (state, _) = end.ending.name();
        let added = self.tracker.add(&Item::End { time: now(), state: state.into() });
        end.warnings.extend(self.tracker.close());
        added
    }
}
