//! Trackers against servers that accept items, refuse them, break off, or are not there.

mod otlp;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::mlflow::{NAME, name};
use super::*;

/// Requests that a server received.
#[derive(Debug, Default)]
struct Told {
    /// Metrics by name and step.
    metrics: BTreeMap<(String, u64), Value>,
    params: BTreeMap<String, String>,
    files: BTreeMap<String, Vec<u8>>,
    statuses: Vec<String>,
    runs: usize,
    /// OTLP requests: signal and content.
    signals: Vec<(String, Value)>,
}

/// Behavior of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mood {
    Well,
    /// Status 503.
    Busy,
    /// Takes the request and breaks off.
    Cuts,
    /// Status 400 for figures named `bad`.
    Picky,
}

struct Server {
    address: String,
    told: Arc<Mutex<Told>>,
    mood: Arc<Mutex<Mood>>,
    is_over: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Server {
    fn start(address: &str, mood: Mood, told: Arc<Mutex<Told>>) -> Self {
        let listener = TcpListener::bind(address).unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (mood, is_over) = (Arc::new(Mutex::new(mood)), Arc::new(AtomicBool::new(false)));
        let (told_there, mood_there, over_there) = (Arc::clone(&told), Arc::clone(&mood), Arc::clone(&is_over));
        let thread = std::thread::spawn(move || {
            for stream in listener.incoming() {
                if over_there.load(Ordering::Relaxed) {
                    return;
                }
                // A client may have gone.
                let _ = answer(stream.unwrap(), *mood_there.lock().unwrap(), &told_there);
            }
        });
        Self { address, told, mood, is_over, thread: Some(thread) }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        let _ = TcpStream::connect(&self.address);
        let _ = self.thread.take().map(std::thread::JoinHandle::join);
    }
}

fn answer(stream: TcpStream, mood: Mood, told: &Mutex<Told>) -> std::io::Result<()> {
    stream.set_read_timeout(Some(Duration::from_secs(30)))?;
    let mut reader = BufReader::new(stream);
    let mut lines = Vec::new();
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line)? == 0 {
            return Ok(());
        }
        if line.trim().is_empty() {
            break;
        }
        lines.push(line.trim().to_owned());
    }
    let length =
        lines.iter().find_map(|line| line.to_ascii_lowercase().strip_prefix("content-length:")?.trim().parse().ok());
    let mut body = vec![0; length.unwrap_or(0)];
    reader.read_exact(&mut body)?;
    let call = lines[0].split(' ').nth(1).unwrap_or_default().to_owned();
    let (status, content) = match mood {
        Mood::Busy => ("503 Service Unavailable", json!({ "message": "busy" })),
        Mood::Cuts => return Ok(()),
        Mood::Picky if String::from_utf8_lossy(&body).contains("\"bad\"") => {
            ("400 Bad Request", json!({ "message": "bad is bad" }))
        }
        _ => take(&call, &body, &mut told.lock().unwrap()),
    };
    let content = content.to_string();
    let length = content.len();
    write!(reader.get_mut(), "HTTP/1.1 {status}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{content}")
}

/// Answer of MLflow.
fn take(call: &str, body: &[u8], told: &mut Told) -> (&'static str, Value) {
    if let Some(file) = call.strip_prefix("/api/2.0/mlflow-artifacts/artifacts/7/run-1/artifacts/") {
        told.files.insert(file.to_owned(), body.to_vec());
        return ("200 OK", json!({}));
    }
    let json: Value = serde_json::from_slice(body).unwrap_or_default();
    if let Some(signal) = call.strip_prefix("/v1/") {
        return otlp::take(signal, json, told);
    }
    let call = call.strip_prefix("/api/2.0/mlflow/").expect("a call");
    let answer = match call.split('?').next().unwrap() {
        "experiments/get-by-name" if call.ends_with("known") => json!({ "experiment": { "experiment_id": "7" } }),
        "experiments/get-by-name" => return ("404 Not Found", json!({ "message": "no such experiment" })),
        "experiments/create" => json!({ "experiment_id": "7" }),
        "runs/create" => {
            told.runs += 1;
            let id = format!("run-{}", told.runs);
            json!({ "run": { "info": { "run_id": id, "artifact_uri": format!("mlflow-artifacts:/7/{id}/artifacts") } } })
        }
        "runs/log-batch" => {
            assert!(json["run_id"].as_str().is_some_and(|id| id.starts_with("run-")));
            for metric in json["metrics"].as_array().unwrap_or(&Vec::new()) {
                let key = (metric["key"].as_str().unwrap().to_owned(), metric["step"].as_u64().unwrap());
                told.metrics.insert(key, metric["value"].clone());
            }
            for param in json["params"].as_array().unwrap_or(&Vec::new()) {
                told.params.insert(param["key"].as_str().unwrap().into(), param["value"].as_str().unwrap().into());
            }
            json!({})
        }
        "runs/update" => {
            told.statuses.push(json["status"].as_str().unwrap().to_owned());
            json!({})
        }
        "runs/set-tag" => json!({}),
        other => panic!("{other}"),
    };
    ("200 OK", answer)
}

fn target(address: &str) -> Target {
    let (experiment, run_name) = ("known".to_owned(), "a run".to_owned());
    Target { uri: format!("http://{address}/"), experiment, run_name, tags: BTreeMap::new() }
}

fn open(folder: &Path, address: &str, run: &str) -> Tracker {
    let target = target(address);
    Tracker::open(NAME, folder, run, json!(target), Box::new(MlFlow::new(target))).unwrap()
}

fn begin() -> Item {
    Item::Begin { time: 5, settings: vec![("train.lr".into(), "0.1".into())] }
}

fn figures(step: u64, key: &str, value: f64) -> Item {
    Item::Figures { time: step, step, values: vec![(key.into(), number(value))] }
}

fn end() -> Item {
    Item::End { time: 9, state: "finished".into() }
}

/// Waits until the server has received enough; fails the test after a time limit.
fn until(told: &Mutex<Told>, is_enough: impl Fn(&Told) -> bool) {
    let begun = Instant::now();
    while !is_enough(&told.lock().unwrap()) {
        assert!(begun.elapsed() < Duration::from_secs(120), "{:?}", told.lock().unwrap());
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn all_that_is_added_arrives() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start("127.0.0.1:0", Mood::Well, Arc::default());
    let mut tracker = open(folder.path(), &server.address, "a");
    tracker.add(&begin()).unwrap();
    for step in 1..=2500 {
        tracker.add(&figures(step, "lm loss", 1.0 / step as f64)).unwrap();
    }
    tracker.add(&figures(2501, "lm loss", f64::NAN)).unwrap();
    tracker.add(&Item::Text { name: "recipe.toml".into(), content: "name = 1".into() }).unwrap();
    let file = folder.path().join("loss.png");
    std::fs::write(&file, b"picture").unwrap();
    tracker.add(&Item::File { name: "loss.png".into(), path: file }).unwrap();
    tracker.add(&end()).unwrap();
    assert_eq!(tracker.close(), None);
    let told = server.told.lock().unwrap();
    assert_eq!(told.metrics.len(), 2501);
    assert!((1..=2500).all(|step| told.metrics[&("lm loss".into(), step)] == json!(1.0 / step as f64)));
    assert_eq!(told.metrics[&("lm loss".into(), 2501)], json!("NaN"));
    assert_eq!(told.params["train.lr"], "0.1");
    assert_eq!(told.files["recipe.toml"], b"name = 1");
    assert_eq!(told.files["loss.png"], b"picture");
    assert_eq!(told.statuses, ["FINISHED"]);
    assert_eq!(send_left(folder.path()).unwrap()[0].sent, 0);
}

#[test]
fn a_server_that_comes_and_goes_misses_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let first = Server::start("127.0.0.1:0", Mood::Busy, Arc::default());
    let (address, told) = (first.address.clone(), Arc::clone(&first.told));
    let tracker = open(folder.path(), &address, "a");
    tracker.add(&begin()).unwrap();
    let mut errors = 0;
    let mut add = |steps: std::ops::Range<u64>| {
        errors += steps.filter(|step| tracker.add(&figures(*step, "lm loss", *step as f64)).is_err()).count();
    };
    add(0..50);
    *first.mood.lock().unwrap() = Mood::Cuts;
    add(50..100);
    *first.mood.lock().unwrap() = Mood::Well;
    until(&told, |told| told.metrics.len() == 100);
    drop(first);
    add(100..150);
    let second = Server::start(&address, Mood::Well, Arc::clone(&told));
    until(&told, |told| told.metrics.len() == 150);
    assert_eq!(told.lock().unwrap().runs, 1, "a run that was begun is not begun again");
    assert!(errors <= 4, "said {errors} times");
    drop(tracker);
    drop(second);
}

#[test]
fn what_is_left_is_sent_later_and_a_resumed_run_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let mut tracker = open(folder.path(), &address, "a");
    tracker.add(&begin()).unwrap();
    for step in 0..30 {
        // The first failure to reach the server is an error.
        let _ = tracker.add(&figures(step, "lm loss", 0.5));
    }
    let _ = tracker.add(&end());
    // The end is not waited for here.
    tracker.patience = Duration::ZERO;
    assert!(tracker.close().unwrap().contains("bridge runs send"));
    let left = send_left(folder.path()).unwrap();
    assert!(left[0].left.is_some() && left[0].sent == 0, "{left:?}");
    let server = Server::start(&address, Mood::Well, Arc::default());
    let sent = send_left(folder.path()).unwrap();
    assert_eq!((sent[0].sent, &sent[0].left), (32, &None));
    assert_eq!(server.told.lock().unwrap().metrics.len(), 30);
    let mut tracker = open(folder.path(), &address, "a");
    tracker.add(&begin()).unwrap();
    tracker.add(&figures(30, "lm loss", 0.25)).unwrap();
    assert_eq!(tracker.close(), None);
    let told = server.told.lock().unwrap();
    assert_eq!((told.runs, told.metrics.len()), (1, 31));
    assert_eq!(told.statuses, ["FINISHED", "RUNNING"]);
}

#[test]
fn what_is_refused_costs_only_itself() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start("127.0.0.1:0", Mood::Picky, Arc::default());
    let mut tracker = open(folder.path(), &server.address, "a");
    tracker.add(&begin()).unwrap();
    until(&server.told, |told| told.runs == 1);
    for step in 0..3 {
        tracker.add(&figures(step, "good", 1.0)).unwrap();
        until(&server.told, |told| told.metrics.len() as u64 == step + 1);
        let _ = tracker.add(&figures(step, "bad", 1.0));
    }
    let said = tracker.close().unwrap();
    assert!(said.contains("3 items were refused"), "{said}");
    assert_eq!(server.told.lock().unwrap().metrics.len(), 3);
}

#[test]
fn another_run_in_the_folder_keeps_what_it_has_not_sent() {
    let folder = tempfile::tempdir().unwrap();
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    for run in ["a", "b"] {
        let mut tracker = open(folder.path(), &address, run);
        tracker.add(&begin()).unwrap();
        tracker.patience = Duration::ZERO;
        assert!(tracker.close().is_some());
    }
    let server = Server::start(&address, Mood::Well, Arc::default());
    let sent = send_left(folder.path()).unwrap();
    assert_eq!(sent.iter().map(|sent| sent.sent).collect::<Vec<_>>(), [1, 1]);
    assert_eq!(server.told.lock().unwrap().runs, 2);
}

#[test]
fn names_are_those_that_mlflow_takes() {
    for (given, expected) in [
        ("lm loss", "lm loss"),
        ("throughput/tflops/device", "throughput/tflops_device"),
        ("a//b@3", "a/b_at_3"),
        ("zeros%[1]", "zeros__1_"),
    ] {
        assert_eq!(name(given), expected);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// A spool that is cut or changed gives all items of lines that are whole.
    #[test]
    fn a_damaged_spool_loses_only_what_is_damaged(at in 0_usize..400, bit in 0_u8..8, cuts in any::<bool>()) {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().join("s");
        let spool = Spool::open(&place).unwrap();
        let items: Vec<Item> = (0..8).map(|step| figures(step, "lm loss", 0.5)).collect();
        items.iter().for_each(|item| spool.append(item).unwrap());
        drop(spool);
        let path = place.join("items");
        let mut bytes = std::fs::read(&path).unwrap();
        let at = at % bytes.len();
        let line = bytes[..at].iter().filter(|byte| **byte == b'\n').count();
        if cuts { bytes.truncate(at) } else { bytes[at] ^= 1 << bit }
        std::fs::write(&path, &bytes).unwrap();
        let spool = Spool::open(&place).unwrap();
        spool.append(&items[0]).unwrap();
        let found: Vec<Item> = spool.read(0).unwrap().into_iter().filter_map(|(item, _)| item).collect();
        prop_assert_eq!(&found[..line], &items[..line]);
        prop_assert_eq!(found.last(), Some(&items[0]));
        // A newline that is gone takes the line after it along.
        let least = if cuts { line + 1 } else { items.len() - 1 };
        prop_assert!(found.len() >= least && found.len() <= items.len() + 1, "{} {}", found.len(), line);
    }
}
