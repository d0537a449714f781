//! Prometheus: every figure of the last records, with its labels, at an HTTP endpoint of rank 0
//! (`logger.prometheus_addr`). The text is OpenMetrics. Ranks other than 0 have no endpoint:
//! figures are of the whole run. The port is free again when the run is over.

use std::collections::BTreeMap;
use std::net::{TcpListener, ToSocketAddrs};
use std::sync::{Arc, Mutex, PoisonError};
use std::{fmt, io};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit};

use crate::http::{Answer, Request, Server};
use crate::logging::record::{Figure, Record, RunEnd};
use crate::logging::sink::{OpenError, Opened, Sink, SinkContext, SinkError};
use bridge_config::redacted;

const KEY: &str = "logger.prometheus_addr";
const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Metrics by name, and their values by labels.
type Metrics = BTreeMap<String, BTreeMap<Vec<(&'static str, String)>, Figure>>;

/// The last value of every figure.
#[derive(Clone, Debug, Default)]
struct Figures(Arc<Mutex<Metrics>>);

impl Collector for Figures {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        let metrics = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for (name, values) in metrics.iter() {
            let Some(first) = values.values().next() else { continue };
            let kind = if first.is_counter { MetricType::Counter } else { MetricType::Gauge };
            let (name, unit) = with_unit(name, first.unit);
            let mut family = encoder.encode_descriptor(name, first.help, unit.as_ref(), kind)?;
            for (labels, figure) in values {
                match labels.as_slice() {
                    [] => encode(figure, &mut family)?,
                    labels => encode(figure, &mut family.encode_family(&labels)?)?,
                }
            }
        }
        Ok(())
    }
}

fn encode(figure: &Figure, encoder: &mut MetricEncoder) -> fmt::Result {
    let value = figure.value.number().unwrap_or(f64::NAN);
    match figure.is_counter {
        false => encoder.encode_gauge(&value),
        true => encoder.encode_counter::<[(&str, &str); 0], _, u64>(&value, None),
    }
}

/// A metric's name without its unit, and the unit, which the encoder joins. Units that are not
/// words are not part of names.
fn with_unit<'a>(name: &'a str, unit: &'static str) -> (&'a str, Option<Unit>) {
    if unit.is_empty() || !unit.bytes().all(|byte| byte.is_ascii_lowercase()) {
        return (name, None);
    }
    let base = name.strip_suffix(unit).and_then(|base| base.strip_suffix('_'));
    (base.unwrap_or(name), Some(Unit::Other(unit.to_owned())))
}

/// A label's value as it is written: the encoder takes it as it is.
fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

impl Figures {
    fn take(&self, record: &Record) {
        let mut metrics = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let iteration = Figure::new("iteration", "", "Steps done", record.iteration);
        for figure in record.figures.iter().chain([&iteration]).filter(|figure| figure.value.number().is_some()) {
            let name = format!("bridge_{}_{}", record.kind.name(), figure.name);
            let name = name.replace(|c: char| !c.is_ascii_alphanumeric(), "_");
            let labels = figure.labels.iter().map(|(label, value)| (*label, escaped(value))).collect();
            metrics.entry(name).or_default().insert(labels, figure.clone());
        }
    }

    /// The page of a scrape.
    fn page(&self) -> Result<String, fmt::Error> {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(self.clone()));
        let mut page = String::new();
        prometheus_client::encoding::text::encode(&mut page, &registry)?;
        Ok(page)
    }
}

/// The endpoint, until it is dropped.
struct Prometheus {
    figures: Figures,
    /// Server, or the reason that it could not start.
    server: Result<Server, String>,
}

pub(super) fn open(context: &SinkContext) -> Opened {
    let listening = context.config.logger.prometheus_addr.as_deref().map(listen).transpose()?;
    Ok(listening.map(|page| Box::new(page) as Box<dyn Sink>))
}

fn listen(address: &str) -> Result<Prometheus, OpenError> {
    let is_malformed = |error: &io::Error| error.kind() == io::ErrorKind::InvalidInput;
    let figures = Figures::default();
    let pages = figures.clone();
    let start = || {
        let addresses = address.to_socket_addrs()?.collect::<Vec<_>>();
        let listener = TcpListener::bind(addresses.as_slice())?;
        Server::start(listener, "prometheus", move |request| answer(request, &pages))
    };
    let shown = redacted(address);
    let server = match start() {
        Err(error) if is_malformed(&error) => {
            let message = format!("`{shown}` is not an address ({error}); expected HOST:PORT, such as 127.0.0.1:9090");
            return Err(OpenError::Setting { key: KEY, message });
        }
        started => started.map_err(|error| format!("{KEY}: cannot listen on {shown}: {error}; no figures are served")),
    };
    Ok(Prometheus { figures, server })
}

fn answer(request: Request<'_>, figures: &Figures) -> Answer {
    match (request.method, request.path) {
        ("GET" | "HEAD", "/metrics") => match figures.page() {
            Ok(body) => Answer { kind: CONTENT_TYPE, ..Answer::text("200 OK", body) },
            Err(_) => Answer::text("500 Internal Server Error", ""),
        },
        (_, "/metrics") => Answer { headers: "Allow: GET, HEAD\r\n", ..Answer::text("405 Method Not Allowed", "") },
        _ => Answer::text("404 Not Found", "metrics are at /metrics\n"),
    }
}

impl Sink for Prometheus {
    fn name(&self) -> &str {
        "the page for Prometheus"
    }

    fn missing_history(&self) -> Option<String> {
        self.server.as_ref().err().cloned()
    }

    fn on_record(&mut self, record: &Record) -> Result<(), SinkError> {
        self.figures.take(record);
        Ok(())
    }

    fn on_run_end(&mut self, _end: &mut RunEnd) -> Result<(), SinkError> {
        if let Ok(server) = &mut self.server {
            server.stop();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpStream;

    use super::*;
    use crate::logging::record::RecordKind;

    /// A page at an address of its own.
    fn listening() -> (Prometheus, String) {
        let sink = listen("127.0.0.1:0").unwrap();
        let address = sink.server.as_ref().unwrap().address().to_string();
        (sink, address)
    }

    fn ask(address: &str, request: &str) -> (String, String) {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        (head.to_owned(), body.to_owned())
    }

    fn record(iteration: u64, figures: Vec<Figure>) -> Record {
        Record { kind: RecordKind::Train, iteration, consumed_samples: 8, ends_interval: false, figures }
    }

    #[test]
    fn every_figure_is_served_with_its_type_unit_and_labels() {
        let (mut sink, address) = listening();
        let mut hidden = Figure::new("loss", "", "Loss of the language model", 5.5_f32).file();
        hidden.hide();
        let figures = vec![
            hidden,
            Figure::new("time_left", "seconds", "Time left", 7.0).of_interval(),
            Figure::new("consumed_samples", "samples", "Samples trained on", 16_u64).counter(),
            Figure::new("losses", "", "Each loss", 1.0).label("name", "lm loss"),
            Figure::new("losses", "", "Each loss", f64::NAN).label("name", "a \"z\""),
            Figure::new("throughput/device", "", "Pace", 2.0),
        ];
        sink.on_record(&record(1, figures)).unwrap();
        // A figure that is absent in a record keeps its last value.
        sink.on_record(&record(2, vec![Figure::new("loss", "", "Loss of the language model", 4.25_f32)])).unwrap();
        let (head, body) = ask(&address, "GET /metrics?x=1 HTTP/1.1\r\nHost: here\r\n\r\n");
        assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
        assert!(head.contains(&format!("Content-Type: {CONTENT_TYPE}")), "{head}");
        assert!(head.contains(&format!("Content-Length: {}", body.len())), "{head}");
        assert_eq!(
            body,
            "# HELP bridge_train_consumed_samples Samples trained on\n\
             # TYPE bridge_train_consumed_samples counter\n\
             # UNIT bridge_train_consumed_samples samples\n\
             bridge_train_consumed_samples_total 16.0\n\
             # HELP bridge_train_iteration Steps done\n\
             # TYPE bridge_train_iteration gauge\n\
             bridge_train_iteration 2.0\n\
             # HELP bridge_train_loss Loss of the language model\n\
             # TYPE bridge_train_loss gauge\n\
             bridge_train_loss 4.25\n\
             # HELP bridge_train_losses Each loss\n\
             # TYPE bridge_train_losses gauge\n\
             bridge_train_losses{name=\"a \\\"z\\\"\"} NaN\n\
             bridge_train_losses{name=\"lm loss\"} 1.0\n\
             # HELP bridge_train_throughput_device Pace\n\
             # TYPE bridge_train_throughput_device gauge\n\
             bridge_train_throughput_device 2.0\n\
             # HELP bridge_train_time_left_seconds Time left\n\
             # TYPE bridge_train_time_left_seconds gauge\n\
             # UNIT bridge_train_time_left_seconds seconds\n\
             bridge_train_time_left_seconds 7.0\n\
             # EOF\n"
        );
    }

    #[test]
    fn other_requests_are_refused() {
        let (sink, address) = listening();
        for (request, status) in [
            ("GET / HTTP/1.1\r\n\r\n", "404 Not Found"),
            ("POST /metrics HTTP/1.1\r\n\r\n", "405 Method Not Allowed"),
            ("hello\r\n\r\n", "400 Bad Request"),
        ] {
            let (head, _) = ask(&address, request);
            assert!(head.starts_with(&format!("HTTP/1.1 {status}")), "{head}");
        }
        let (head, body) = ask(&address, "HEAD /metrics HTTP/1.0\r\n\r\n");
        assert!(head.contains("200 OK") && head.contains("Content-Length: 6") && body.is_empty(), "{head}");
        drop(sink);
        // The port is free again.
        drop(listen(&address).unwrap());
    }

    #[test]
    fn addresses_in_use_are_a_warning_and_malformed_ones_are_refused() {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = taken.local_addr().unwrap().to_string();
        let mut sink = listen(&address).unwrap();
        let lacks = sink.missing_history().unwrap();
        assert!(lacks.starts_with(&format!("{KEY}: cannot listen on {address}: ")), "{lacks}");
        sink.on_record(&record(1, Vec::new())).unwrap();
        assert_eq!(listening().0.missing_history(), None);
        let message = listen("nowhere").err().unwrap().to_string();
        assert!(message.starts_with("logger.prometheus_addr: `nowhere` is not an address ("), "{message}");
    }
}
