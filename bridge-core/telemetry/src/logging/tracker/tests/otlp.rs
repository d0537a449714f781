//! OTLP against a collector that accepts items, is busy, breaks off, refuses all or a part, or is
//! not there.

use super::*;

/// Answer of a collector: it rejects points that are named `rejected`.
pub(super) fn take(signal: &str, json: Value, told: &mut Told) -> (&'static str, Value) {
    let metrics = json["resourceMetrics"][0]["scopeMetrics"][0]["metrics"].as_array().cloned().unwrap_or_default();
    let rejects = metrics.iter().any(|metric| metric["name"] == "rejected");
    if rejects {
        return ("200 OK", json!({ "partialSuccess": { "rejectedDataPoints": "1", "errorMessage": "no such unit" } }));
    }
    told.signals.push((signal.to_owned(), json));
    ("200 OK", json!({ "partialSuccess": {} }))
}

fn open(folder: &Path, address: &str) -> Tracker {
    let target = OtlpTarget { endpoint: format!("http://{address}/"), recipe: "tiny".into() };
    Tracker::open(OTLP, folder, "run-a", json!(target), Box::new(Otlp::new(target))).unwrap()
}

fn span(step: u64) -> Item {
    let attributes =
        vec![("iteration".to_owned(), json!(step)), ("loss".to_owned(), json!(0.5)), ("bad".into(), json!("NaN"))];
    Item::Span { name: "step".into(), start: step * 1000, end: step * 1000 + 900, attributes }
}

/// Values by name and step, of all requests.
fn points(told: &Told) -> BTreeMap<(String, String), Value> {
    let mut found = BTreeMap::new();
    for (_, content) in told.signals.iter().filter(|(signal, _)| signal == "metrics") {
        let resource = &content["resourceMetrics"][0];
        assert_eq!(resource["resource"]["attributes"][1]["value"]["stringValue"], "run-a");
        for metric in resource["scopeMetrics"][0]["metrics"].as_array().unwrap() {
            for point in metric["gauge"]["dataPoints"].as_array().unwrap() {
                let step = point["attributes"][0]["value"]["intValue"].as_str().unwrap().to_owned();
                assert_eq!(point["timeUnixNano"], format!("{}", step.parse::<u64>().unwrap() * 1_000_000));
                found.insert((metric["name"].as_str().unwrap().to_owned(), step), point["asDouble"].clone());
            }
        }
    }
    found
}

fn spans(told: &Told) -> Vec<Value> {
    let traces = told.signals.iter().filter(|(signal, _)| signal == "traces");
    let spans =
        traces.flat_map(|(_, content)| content["resourceSpans"][0]["scopeSpans"][0]["spans"].as_array().cloned());
    spans.flatten().collect()
}

#[test]
fn figures_are_gauges_and_steps_are_spans_of_one_trace() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start("127.0.0.1:0", Mood::Well, Arc::default());
    let mut tracker = open(folder.path(), &server.address);
    tracker.add(&begin()).unwrap();
    for step in 1..=3000 {
        tracker.add(&figures(step, "lm loss", 1.0 / step as f64)).unwrap();
        if step % 100 == 0 {
            tracker.add(&span(step)).unwrap();
        }
    }
    tracker.add(&figures(3001, "lm loss", f64::NAN)).unwrap();
    tracker.add(&end()).unwrap();
    assert_eq!(tracker.close(), None);
    let told = server.told.lock().unwrap();
    let points = points(&told);
    assert_eq!(points.len(), 3001);
    assert!((1..=3000_u64).all(|step| points[&("lm loss".to_owned(), step.to_string())] == json!(1.0 / step as f64)));
    assert_eq!(points[&("lm loss".to_owned(), "3001".to_owned())], json!("NaN"));
    let spans = spans(&told);
    assert_eq!(spans.len(), 31);
    let root = spans.last().unwrap();
    assert_eq!(
        (&root["name"], &root["startTimeUnixNano"], &root["endTimeUnixNano"]),
        (&json!("tiny"), &json!("5000000"), &json!("9000000"))
    );
    let ids: std::collections::BTreeSet<&str> = spans.iter().map(|span| span["spanId"].as_str().unwrap()).collect();
    assert_eq!(ids.len(), 31);
    for (step, span) in (1..).map(|n: u64| n * 100).zip(&spans[..30]) {
        assert_eq!((&span["traceId"], &span["parentSpanId"]), (&root["traceId"], &root["spanId"]));
        assert_eq!(span["traceId"].as_str().unwrap().len(), 32);
        assert_eq!(span["startTimeUnixNano"], format!("{}", step * 1000));
        let attributes = &span["attributes"];
        assert_eq!(attributes[0], json!({ "key": "iteration", "value": { "intValue": step.to_string() } }));
        assert_eq!(attributes[1]["value"]["doubleValue"], json!(0.5));
        assert_eq!(attributes[2]["value"]["stringValue"], "NaN");
    }
}

#[test]
fn a_collector_that_is_busy_cut_or_away_misses_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let first = Server::start("127.0.0.1:0", Mood::Busy, Arc::default());
    let (address, told) = (first.address.clone(), Arc::clone(&first.told));
    let tracker = open(folder.path(), &address);
    tracker.add(&begin()).unwrap();
    // Each kind of failure is reported once.
    let add = |steps: std::ops::Range<u64>| {
        steps.filter(|step| tracker.add(&figures(*step, "lm loss", 1.0)).is_err()).count()
    };
    let mut errors = add(0..50);
    *first.mood.lock().unwrap() = Mood::Cuts;
    errors += add(50..100);
    *first.mood.lock().unwrap() = Mood::Well;
    until(&told, |told| points(told).len() == 100);
    drop(first);
    errors += add(100..150);
    let second = Server::start(&address, Mood::Well, Arc::clone(&told));
    until(&told, |told| points(told).len() == 150);
    assert!(errors <= 4, "said {errors} times");
    drop(tracker);
    drop(second);
}

#[test]
fn what_a_collector_rejects_costs_only_itself() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start("127.0.0.1:0", Mood::Busy, Arc::default());
    let mut tracker = open(folder.path(), &server.address);
    tracker.add(&begin()).unwrap();
    // All are in one request, when the collector is there again.
    for step in 0..20 {
        let name = if step % 7 == 3 { "rejected" } else { "good" };
        let _ = tracker.add(&figures(step, name, 1.0));
    }
    *server.mood.lock().unwrap() = Mood::Well;
    until(&server.told, |told| points(told).len() == 17);
    let said = tracker.close().unwrap();
    assert!(said.contains("3 items were refused"), "{said}");
    assert_eq!(send_left(folder.path()).unwrap()[0].tracker, "otlp");
}
