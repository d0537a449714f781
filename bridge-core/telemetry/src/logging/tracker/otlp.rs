//! OpenTelemetry, by OTLP over HTTP with JSON (opentelemetry.io/docs/specs/otlp, version 1.5):
//! figures as gauges, and a trace of the run with a span for each step. By hand, because the
//! ecosystem's exporter brings an HTTP client of its own.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use twox_hash::XxHash3_128;

use super::http::{Body, Client};
use super::service::{Item, Known, SendError, Service};

/// Name for messages and the spool's folder.
pub(in crate::logging) const NAME: &str = "otlp";

/// Points or spans of a request.
const AT_ONCE: usize = 2000;

/// Service name of runs.
const SERVICE: &str = "bridge";

/// The span of the whole run, around all others.
const RUN: &str = "run";

/// Destination of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(in crate::logging) struct OtlpTarget {
    /// Address of the collector, to which `/v1/metrics` and `/v1/traces` are added.
    pub endpoint: String,
    pub recipe: String,
}

/// The client of a collector.
pub(in crate::logging) struct Otlp {
    target: OtlpTarget,
    client: Client,
}

impl Otlp {
    /// A client; the collector is not asked before there is something to send. Headers, such as a
    /// key, are those of `OTEL_EXPORTER_OTLP_HEADERS`, as the specification has it:
    /// `name=value,name=value`.
    pub fn new(target: OtlpTarget) -> Self {
        let headers = std::env::var("OTEL_EXPORTER_OTLP_HEADERS").unwrap_or_default();
        let pair =
            |pair: &str| pair.split_once('=').map(|(name, value)| (name.trim().to_owned(), value.trim().to_owned()));
        let headers = headers.split(',').filter_map(pair).collect();
        Self { client: Client::new(&target.endpoint, None, headers), target }
    }

    /// Resource attributes of the sender.
    fn resource(&self, run: &str) -> Value {
        let of = |(key, value): (&str, &str)| json!({ "key": key, "value": { "stringValue": value } });
        let attributes =
            [("service.name", SERVICE), ("service.instance.id", run), ("bridge.recipe", &self.target.recipe)];
        json!({ "attributes": attributes.map(of) })
    }

    /// Sends `content` as a list `list` of a signal, `metrics` or `traces`, whose names in JSON
    /// begin with `prefix`.
    fn post(&self, run: &str, signal: &str, prefix: &str, list: &str, content: Value) -> Result<(), SendError> {
        let scope = json!({ "name": SERVICE, "version": env!("CARGO_PKG_VERSION") });
        let scoped = json!([{ "scope": scope, list: content }]);
        let resources = json!([{ "resource": self.resource(run), format!("scope{prefix}"): scoped }]);
        let body = json!({ format!("resource{prefix}"): resources });
        let answer = self.client.ask(&format!("v1/{signal}"), Body::Json(&body))?;
        let partial = &answer["partialSuccess"];
        let rejected = ["rejectedDataPoints", "rejectedSpans"].iter().any(|count| match &partial[count] {
            Value::String(count) => count != "0",
            Value::Number(count) => count.as_u64() != Some(0),
            _ => false,
        });
        let why = partial["errorMessage"].as_str().unwrap_or("no reason given");
        if rejected { Err(SendError::Never(format!("{signal}: the collector rejects some: {why}"))) } else { Ok(()) }
    }

    /// Sends the figures of some items.
    fn figures(&self, run: &str, items: &[&Item]) -> Result<(), SendError> {
        let mut by_name: BTreeMap<&str, Vec<Value>> = BTreeMap::new();
        for item in items {
            let Item::Figures { time, step, values } = item else { continue };
            for (name, value) in values {
                let step = json!({ "key": "step", "value": { "intValue": step.to_string() } });
                let time = (time * 1_000_000).to_string();
                let point = json!({ "timeUnixNano": time, "asDouble": value, "attributes": [step] });
                by_name.entry(name).or_default().push(point);
            }
        }
        let metric = |(name, points)| json!({ "name": name, "gauge": { "dataPoints": points } });
        self.post(run, "metrics", "Metrics", "metrics", by_name.into_iter().map(metric).collect())
    }

    fn spans(&self, run: &str, spans: Vec<Value>) -> Result<(), SendError> {
        self.post(run, "traces", "Spans", "spans", spans.into())
    }
}

/// A span of the run, which is the one `what`, in nanoseconds since 1970.
fn span(run: &str, what: &str, name: &str, (start, end): (u64, u64), attributes: Value) -> Value {
    let id = |what: &str| {
        let hash = XxHash3_128::oneshot(format!("{run}\n{what}").as_bytes()) as u64;
        format!("{:016x}", hash.max(1))
    };
    let mut span = json!({
        // All jobs of the run have one trace.
        "traceId": format!("{:032x}", XxHash3_128::oneshot(run.as_bytes()).max(1)),
        "spanId": id(what),
        "name": name,
        "kind": 1,
        "startTimeUnixNano": start.to_string(),
        "endTimeUnixNano": end.to_string(),
        "attributes": attributes,
    });
    if what != RUN {
        span["parentSpanId"] = id(RUN).into();
    }
    span
}

/// The span of a step, or of another part of the run.
fn span_of(run: &str, item: &Item) -> Option<Value> {
    let Item::Span { name, start, end, attributes } = item else { return None };
    let attribute = |(key, value): &(String, Value)| {
        let value = match value {
            Value::Number(number) if number.is_u64() => json!({ "intValue": number.to_string() }),
            Value::Number(number) => json!({ "doubleValue": number }),
            Value::String(text) => json!({ "stringValue": text }),
            other => json!({ "stringValue": other.to_string() }),
        };
        json!({ "key": key, "value": value })
    };
    let attributes = attributes.iter().map(attribute).collect();
    Some(span(run, &format!("{name} {start}"), name, (*start, *end), attributes))
}

/// Leading items that fit into one request: items of one type, up to a limit of points or spans.
fn leading(items: &[Item]) -> Vec<&Item> {
    let are_figures = matches!(items[0], Item::Figures { .. });
    let size = |item: &Item| match item {
        Item::Figures { values, .. } if are_figures => Some(values.len()),
        Item::Span { .. } if !are_figures => Some(1),
        _ => None,
    };
    let mut sum = 0;
    let fits = |item: &&Item| {
        let Some(size) = size(item) else { return false };
        sum += size;
        sum <= AT_ONCE || sum == size
    };
    items.iter().take_while(fits).collect()
}

impl Service for Otlp {
    fn send(&mut self, known: &mut Known, items: &[Item]) -> Result<usize, SendError> {
        let run = known.run.clone();
        let send = |some: &[&Item]| match some[0] {
            Item::Figures { .. } => self.figures(&run, some),
            _ => self.spans(&run, some.iter().filter_map(|item| span_of(&run, item)).collect()),
        };
        match &items[0] {
            Item::Begin { time, .. } => {
                known.ids.entry("begun".into()).or_insert_with(|| time.to_string());
                Ok(1)
            }
            Item::Figures { .. } | Item::Span { .. } => {
                let some = leading(items);
                match send(&some) {
                    Ok(()) => Ok(some.len()),
                    // One of many items may be refused: the first one is sent alone.
                    Err(SendError::Never(_)) if some.len() > 1 => send(&some[..1]).map(|()| 1),
                    Err(why) => Err(why),
                }
            }
            Item::End { time, state } => {
                let begun = known.ids.get("begun").and_then(|begun| begun.parse().ok()).unwrap_or(*time);
                let attributes = json!([{ "key": "state", "value": { "stringValue": state } }]);
                let times = (begun.saturating_mul(1_000_000), time.saturating_mul(1_000_000));
                let mut whole = span(&run, RUN, &self.target.recipe, times, attributes);
                whole["status"] = json!({ "code": if state == "failed" { 2 } else { 1 } });
                self.spans(&run, vec![whole]).map(|()| 1)
            }
            Item::Tag { .. } | Item::Text { .. } | Item::File { .. } => {
                Err(SendError::Never("OTLP has no place for files and tags".into()))
            }
        }
    }
}
