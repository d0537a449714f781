//! The service example, over HTTP: runs are started, watched to their end, cancelled, and refused.

#[path = "../examples/service.rs"]
#[allow(dead_code, reason = "main is not called")]
mod service;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::sync::oneshot;

/// Longest wait for an answer: generous for a machine that runs other tests, and still an end.
const PATIENCE: Duration = Duration::from_secs(120);

/// A blocking HTTP client of one request a connection.
struct Client(SocketAddr);

impl Client {
    /// Status and body of the answer.
    fn ask(&self, method: &str, path: &str, headers: &str, body: &str) -> (u16, String) {
        let mut stream = TcpStream::connect(self.0).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let length = body.len();
        write!(
            stream,
            "{method} {path} HTTP/1.1\r\nHost: bridge\r\nConnection: close\r\nContent-Type: application/json\r\n\
             Content-Length: {length}\r\n{headers}\r\n{body}"
        )
        .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
    }

    fn start(&self, recipe: &Value, overrides: &[&str]) -> u64 {
        let order = json!({ "recipe": recipe, "overrides": overrides });
        let (status, body) = self.ask("POST", "/runs", "", &order.to_string());
        assert_eq!(status, 201, "{body}");
        serde_json::from_str::<Value>(&body).unwrap()["id"].as_u64().unwrap()
    }

    /// The events after the first `seen`; none when the run has told them all.
    fn progress(&self, id: u64, seen: usize) -> Vec<Value> {
        let headers = format!("Last-Event-ID: {seen}\r\n");
        let (status, body) = self.ask("GET", &format!("/runs/{id}/progress"), &headers, "");
        match status {
            204 => Vec::new(),
            200 => {
                let ids = body.lines().filter_map(|line| line.strip_prefix("id: ")).map(|id| id.parse().unwrap());
                let data = body.lines().filter_map(|line| line.strip_prefix("data: "));
                let events: Vec<Value> = data.map(|data| serde_json::from_str(data).unwrap()).collect();
                assert_eq!(ids.collect::<Vec<usize>>(), (seen + 1..=seen + events.len()).collect::<Vec<_>>());
                events
            }
            _ => panic!("{status}: {body}"),
        }
    }

    /// All events of a run, until it ends.
    fn watch(&self, id: u64) -> Vec<Value> {
        let mut events = Vec::new();
        loop {
            match self.progress(id, events.len()) {
                more if more.is_empty() => return events,
                more => events.extend(more),
            }
        }
    }

    /// The answer to a question about a run's model, which has this status.
    fn generate(&self, id: u64, adapter: Option<&str>, expected: u16) -> String {
        let question = json!({ "prompt": "3 1 4", "adapter": adapter, "max_tokens": 8 });
        let (status, body) = self.ask("POST", &format!("/runs/{id}/generate"), "", &question.to_string());
        assert_eq!(status, expected, "{body}");
        match status {
            200 => serde_json::from_str::<Value>(&body).unwrap()["text"].as_str().unwrap().trim().to_owned(),
            _ => body,
        }
    }

    /// Fine-tunes an adapter that answers `3 1 4` with these numbers, to the end. Returns the last
    /// event of its run.
    fn teach(&self, id: u64, name: &str, output: &str) -> Value {
        let examples = [json!({ "input": "3 1 4", "output": output }), json!({ "input": "9 9", "output": output })];
        let overrides = ["train.train_iters=150", "optimizer.lr=2e-2", "checkpoint.save_interval=null", "peft.dim=8"];
        let lesson = json!({ "name": name, "examples": examples, "overrides": overrides });
        let (status, body) = self.ask("POST", &format!("/runs/{id}/adapters"), "", &lesson.to_string());
        assert_eq!(status, 201, "{body}");
        let run = serde_json::from_str::<Value>(&body).unwrap()["id"].as_u64().unwrap();
        self.watch(run).pop().unwrap()
    }

    fn adapters(&self, id: u64) -> Value {
        let (status, body) = self.ask("GET", &format!("/runs/{id}/adapters"), "", "");
        assert_eq!(status, 200, "{body}");
        serde_json::from_str(&body).unwrap()
    }

    fn checkpoints(&self, id: u64) -> Vec<Value> {
        let (status, body) = self.ask("GET", &format!("/runs/{id}/checkpoints"), "", "");
        assert_eq!(status, 200, "{body}");
        serde_json::from_str(&body).unwrap()
    }
}

fn tiny() -> Value {
    json!({
        "model": { "num_layers": 1, "hidden_size": 16, "num_attention_heads": 2, "seq_length": 16, "vocab_size": 64 },
        "train": { "micro_batch_size": 2, "global_batch_size": 2, "train_iters": 6 },
        "validation": { "eval_iters": 0 },
        "optimizer": { "lr": 1e-3 },
        "dataset": { "kind": "mock" },
        "tokenizer": { "tokenizer_type": "NullTokenizer", "vocab_size": 63 },
        "checkpoint": { "save_interval": 3 },
    })
}

fn iterations(checkpoints: &[Value]) -> Vec<u64> {
    assert!(checkpoints.iter().all(|checkpoint| checkpoint["complete"] == true), "{checkpoints:?}");
    checkpoints.iter().map(|checkpoint| checkpoint["iteration"].as_u64().unwrap()).collect()
}

/// A service in a folder of its own: the client, the sender that stops the service, and the
/// function that waits for its end.
fn served(name: &str) -> (Client, oneshot::Sender<()>, impl FnOnce()) {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = std::fs::remove_dir_all(&folder);
    let runtime = Runtime::new().unwrap();
    let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
    let client = Client(listener.local_addr().unwrap());
    let (stop, stopped) = oneshot::channel::<()>();
    let server = runtime.spawn(service::serve(listener, folder, async { stopped.await.unwrap_or_default() }));
    (client, stop, move || runtime.block_on(server).unwrap().unwrap())
}

#[test]
fn adapters_are_taught_listed_asked_and_forgotten() {
    let (client, stop, end) = served("service-adapters");
    let id = client.start(&tiny(), &["model.init_method_std=0.3"]);
    assert_eq!(client.watch(id).pop().unwrap()["event"], "end");
    let of_base = client.generate(id, None, 200);
    assert_eq!(client.adapters(id), json!([]));
    assert_eq!(client.teach(id, "pi", "1 5 9")["event"], "end");
    assert_eq!(client.teach(id, "e", "2 7 1")["event"], "end");
    // Each adapter generates the text that it was trained on, beside the other, and the base
    // generates the same text as before.
    for (adapter, expected) in [(Some("pi"), "1 5 9"), (Some("e"), "2 7 1"), (Some("pi"), "1 5 9"), (None, &of_base)] {
        assert_eq!(client.generate(id, adapter, 200), expected, "{adapter:?}");
    }
    let listed = json!([{ "name": "e", "run": 2, "ready": true }, { "name": "pi", "run": 1, "ready": true }]);
    assert_eq!(client.adapters(id), listed);
    // Their checkpoints have the adapter alone, which is a run like any other.
    assert_eq!(iterations(&client.checkpoints(1)), [150]);
    assert!(client.generate(id, Some("other"), 404).contains("no adapter `other`"));
    let lesson = json!({ "name": "pi", "examples": [] });
    let (status, body) = client.ask("POST", &format!("/runs/{id}/adapters"), "", &lesson.to_string());
    assert_eq!((status, body.contains("has an adapter `pi`")), (409, true), "{body}");
    // Examples that cannot be read fail their run, and leave no adapter to ask.
    let lesson = json!({ "name": "bad", "examples": [{ "no": "example" }] });
    let (status, body) = client.ask("POST", &format!("/runs/{id}/adapters"), "", &lesson.to_string());
    assert_eq!(status, 201, "{body}");
    let end_of_run = client.watch(3).pop().unwrap();
    assert!(end_of_run["error"].as_str().unwrap().contains("training.jsonl"), "{end_of_run}");
    assert_eq!(client.adapters(id)[0], json!({ "name": "bad", "run": 3, "ready": false }));
    assert_eq!(client.ask("DELETE", &format!("/runs/{id}/adapters/pi"), "", "").0, 204);
    assert_eq!(client.ask("DELETE", &format!("/runs/{id}/adapters/pi"), "", "").0, 404);
    client.generate(id, Some("pi"), 404);
    assert_eq!(client.generate(id, Some("e"), 200), "2 7 1");
    stop.send(()).unwrap();
    end();
}

#[test]
fn runs_are_started_watched_cancelled_and_refused() {
    let (client, stop, end_of_service) = served("service");

    // A run that ends on its own.
    let id = client.start(&tiny(), &[]);
    let events = client.watch(id);
    let (end, steps) = events.split_last().unwrap();
    assert_eq!((&end["event"], &end["step"], &end["reason"]), (&json!("end"), &json!(6), &json!("training is done")));
    assert_eq!(steps.iter().map(|step| step["iteration"].as_u64().unwrap()).collect::<Vec<_>>(), [1, 2, 3, 4, 5, 6]);
    // About ln 64 = 4.16 before anything is learned.
    assert!(steps.iter().all(|step| (3.0..5.0).contains(&step["loss"].as_f64().unwrap())), "{steps:?}");
    assert_eq!(iterations(&client.checkpoints(id)), [3, 6]);

    // One that is cancelled, and saves where it stopped.
    let id = client.start(&tiny(), &["train.train_iters=100000", "checkpoint.save_interval=null"]);
    assert_eq!(client.progress(id, 0)[0]["iteration"], 1);
    assert_eq!(client.ask("POST", &format!("/runs/{id}/cancel"), "", "").0, 202);
    let end = client.watch(id).pop().unwrap();
    assert_eq!(end["reason"], "exiting because the run was cancelled");
    let last = end["step"].as_u64().unwrap();
    assert!((1..100_000).contains(&last));
    assert_eq!(iterations(&client.checkpoints(id)), [last]);

    // One that fails after its recipe was accepted.
    let id = client.start(&tiny(), &["device=flex:7"]);
    let end = client.watch(id).pop().unwrap();
    assert_eq!(end["event"], "failed");
    assert!(end["error"].as_str().unwrap().contains("flex:7"), "{end}");

    // A recipe with a typing error, runs that do not exist, an event index that is not a number.
    let order = json!({ "recipe": tiny(), "overrides": ["train.micro_batch_sise=1"] });
    let (status, body) = client.ask("POST", "/runs", "", &order.to_string());
    assert_eq!((status, body.contains("micro_batch_size")), (422, true), "{body}");
    assert_eq!(client.ask("GET", "/runs/3/progress", "", "").0, 404);
    assert_eq!(client.ask("POST", "/runs/3/cancel", "", "").0, 404);
    assert_eq!(client.ask("GET", "/runs/0/progress", "Last-Event-ID: x\r\n", "").0, 400);

    // When the service stops, it stops runs that still train.
    let id = client.start(&tiny(), &["train.train_iters=100000"]);
    assert_eq!(client.progress(id, 0)[0]["iteration"], 1);
    stop.send(()).unwrap();
    end_of_service();
}
