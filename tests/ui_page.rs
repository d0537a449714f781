//! `bridge ui` over runs of the tiny recipe: served pages, refused requests, and automatic updates
//! of a running run.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use bridge_core::logging::health::{RankScore, RankScores, RankSign, Restart, Supervision};
use bridge_tests::{program, run_in};
use serde_json::Value;

/// A server, until it is dropped.
struct Page {
    process: Child,
    address: String,
    runs: u64,
}

struct Answer {
    status: u16,
    head: String,
    body: String,
}

impl Answer {
    fn json(&self) -> Value {
        assert_eq!(self.status, 200, "{}", self.body);
        serde_json::from_str(&self.body).expect("JSON")
    }
}

impl Page {
    fn open(folder: &Path, arguments: &[&str]) -> Self {
        let mut process = Command::new(program())
            .args(["ui", "--port", "0", "--json"])
            .args(arguments)
            .current_dir(folder)
            .stdout(Stdio::piped())
            .spawn()
            .expect("bridge starts");
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let said: Value = serde_json::from_str(&line).expect("a line of JSON");
        let url = said["url"].as_str().unwrap();
        let address = url.trim_start_matches("http://").trim_end_matches('/').to_owned();
        Self { process, address, runs: said["runs"].as_u64().unwrap() }
    }

    fn ask(&self, method: &str, path: &str, host: &str, more: &str) -> Answer {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        write!(stream, "{method} {path} HTTP/1.1\r\nHost: {host}\r\n{more}Connection: close\r\n\r\n").unwrap();
        let mut text = Vec::new();
        stream.read_to_end(&mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        Answer { status, head: head.to_lowercase(), body: body.to_owned() }
    }

    fn get(&self, path: &str) -> Answer {
        self.ask("GET", path, &self.address, "")
    }

    fn runs(&self) -> Vec<Value> {
        self.get("/api/runs").json()["runs"].as_array().unwrap().clone()
    }

    fn wait(&self, what: &str, is_so: impl Fn(&[Value]) -> bool) {
        let end = Instant::now() + Duration::from_secs(60);
        while !is_so(&self.runs()) {
            assert!(Instant::now() < end, "{what}: {:?}", self.runs());
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn train(folder: &Path, name: &str, more: &[&str]) {
    let log = format!("logger.log_dir=runs/{name}");
    let save = format!("checkpoint.save=runs/{name}/checkpoints");
    run_in(folder, &[&[log.as_str(), &save, "logger.plot=false"], more].concat());
}

const SERIES: &str = "/api/series?kind=train&name=loss&x=step&points=100";

#[test]
fn runs_are_served_from_their_files() {
    let folder = tempfile::tempdir().unwrap();
    let traced =
        ["profiling.use_pytorch_profiler=true", "profiling.profile_step_start=2", "profiling.profile_step_end=4"];
    train(folder.path(), "a", &[&["train.train_iters=6"], &traced[..]].concat());
    train(folder.path(), "b", &["train.train_iters=4", "optimizer.lr=5e-4"]);
    let page = Page::open(folder.path(), &["runs"]);
    assert_eq!(page.runs, 2);
    for (path, kind) in [("/", "text/html"), ("/app.js", "text/javascript"), ("/style.css", "text/css")] {
        let answer = page.get(path);
        assert!(answer.status == 200 && answer.head.contains(kind) && answer.body.len() > 1000, "{path}");
        assert!(answer.head.contains("content-security-policy: default-src 'none'"), "{path}: {}", answer.head);
        for outside in ["http:", "https:", "//cdn"] {
            assert!(!answer.body.contains(outside), "{path} fetches nothing: {outside}");
        }
    }
    page.wait("files are read", |runs| runs.iter().all(|run| run["reading"] == "whole"));
    let runs = page.runs();
    assert_eq!((&runs[0]["folder"], &runs[0]["head"]["state"]), (&"a".into(), &"finished".into()));
    assert_eq!((&runs[0]["head"]["iterations"], &runs[1]["head"]["iterations"]), (&6.into(), &4.into()));
    let (a, b) = (runs[0]["id"].to_string(), runs[1]["id"].to_string());

    let curves = page.get(&format!("{SERIES}&runs={a},{b}")).json();
    let logged = bridge_tests::records_in(&folder.path().join("runs/a"), "train");
    let served: Vec<f64> = curves[&a]["mean"].as_array().unwrap().iter().map(|value| value.as_f64().unwrap()).collect();
    assert_eq!(served.len(), 6);
    assert!(served.iter().zip(&logged).all(|(a, b)| (a - b).abs() < 1e-6 * b), "{served:?} {logged:?}");
    assert_eq!(curves[&b]["x"], serde_json::json!([1.0, 2.0, 3.0, 4.0]));
    let part = page.get(&format!("{SERIES}&runs={a}&from=3&to=5&smooth=1")).json();
    assert_eq!((part[&a]["smooth"].as_array().unwrap().len(), &part[&a]["ends"]), (3, &serde_json::json!([1.0, 6.0])));

    let differences = page.get(&format!("/api/differences?runs={a},{b}")).json();
    let keys: Vec<&str> =
        differences["differences"].as_array().unwrap().iter().map(|d| d["key"].as_str().unwrap()).collect();
    assert!(
        keys.contains(&"optimizer.lr") && keys.contains(&"train.train_iters") && !keys.contains(&"rng.seed"),
        "{keys:?}"
    );

    let best = runs[0]["best_valid"][0].as_f64().expect("a validation loss");
    let valid = bridge_tests::records_in(&folder.path().join("runs/a"), "valid");
    assert!((best - valid.iter().copied().fold(f64::INFINITY, f64::min)).abs() < 1e-6 * best, "{best} {valid:?}");

    let run = page.get(&format!("/api/run?run={a}")).json();
    assert_eq!((&run["health"]["supervision"], &run["health"]["scores"]), (&Value::Null, &Value::Null));
    assert_eq!(
        (&run["checkpoints"]["list"][0]["iteration"], &run["checkpoints"]["list"][0]["latest"]),
        (&6.into(), &true.into())
    );
    assert_eq!(run["traces"][0]["name"], "rank_00000.json");
    let trace = page.get(&format!("/api/trace?run={a}&file=rank_00000.json"));
    assert_eq!(trace.body, std::fs::read_to_string(folder.path().join("runs/a/trace/rank_00000.json")).unwrap());
    assert!(page.get(&format!("/api/times?run={a}")).json()[0]["seconds"].as_f64().unwrap() > 0.0);

    // Unchanged content is not sent again.
    let first = page.get("/api/runs");
    let tag = first.head.lines().find_map(|line| line.strip_prefix("etag: ")).unwrap().to_owned();
    let again = page.ask("GET", "/api/runs", &page.address, &format!("If-None-Match: {tag}\r\n"));
    assert_eq!((again.status, again.body.as_str()), (304, ""));
}

#[test]
fn a_run_that_goes_on_and_a_new_one_show_by_themselves() {
    let folder = tempfile::tempdir().unwrap();
    train(folder.path(), "a", &["train.train_iters=8", "train.exit_interval=3"]);
    let page = Page::open(folder.path(), &[]);
    page.wait("the beginning", |runs| runs[0]["head"]["iterations"] == 3 && runs[0]["reading"] == "whole");
    assert_eq!(page.runs()[0]["head"]["state"], "stopped");
    let before = page.runs()[0]["version"].as_u64().unwrap();
    train(folder.path(), "a", &["train.train_iters=8"]);
    train(folder.path(), "deeper/b", &["train.train_iters=2"]);
    page.wait("what was added", |runs| {
        runs.len() == 2 && runs[0]["head"]["state"] == "finished" && runs.iter().all(|run| run["reading"] == "whole")
    });
    let runs = page.runs();
    assert!(runs[0]["version"].as_u64().unwrap() > before);
    let curves = page.get(&format!("{SERIES}&runs={}", runs[0]["id"])).json();
    assert_eq!(curves[runs[0]["id"].to_string()]["x"].as_array().unwrap().len(), 8);
}

#[test]
fn nothing_outside_the_folder_and_no_other_host_is_served() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("secret.json"), "secret").unwrap();
    let log = folder.path().join("runs/a");
    std::fs::create_dir_all(log.join("trace")).unwrap();
    std::fs::write(log.join("metrics.jsonl"), "{\"kind\":\"train\",\"iteration\":1,\"loss\":2}\nnothing\n").unwrap();
    for name in ["rank_00000.json", "rank_1.txt"] {
        std::os::unix::fs::symlink(folder.path().join("secret.json"), log.join("trace").join(name)).unwrap();
    }
    // A record that names a folder elsewhere as that of its checkpoints.
    let other = folder.path().join("elsewhere/iter_0000001");
    std::fs::create_dir_all(&other).unwrap();
    let config = "[checkpoint]\nsave = \"../elsewhere\"\n[dist]\nflight_recorder_dump_path = \"/etc/passwd\"\n";
    let record = serde_json::json!({
        "name": "a", "state": "finished", "why": null, "started": "", "ended": null, "iteration": 1, "train_iters": 1,
        "seq_length": 8, "world_size": 1, "config": config,
    });
    std::fs::write(log.join("run.json"), record.to_string()).unwrap();
    let page = Page::open(folder.path(), &["runs"]);
    page.wait("damaged lines are counted", |runs| runs[0]["damaged"] == 1);
    let paths = ["/../secret.json", "/%2e%2e/secret.json", "/runs/a/run.json", "/etc/passwd", "//etc/passwd"];
    let asked = [
        "/api/run?run=../a",
        "/api/run?run=/etc",
        "/api/run?run=99",
        "/api/series?x=step&runs=..%2F..",
        "/api/trace?run=1&file=..%2Frun.json",
    ];
    let linked = ["/api/trace?run=1&file=rank_00000.json", "/api/trace?run=1&file=rank_1.txt"];
    for path in paths.iter().chain(&asked).chain(&linked) {
        let answer = page.get(path);
        assert!(
            answer.status == 404 && !answer.body.contains("secret\n") && answer.body != "secret",
            "{path}: {}",
            answer.body
        );
    }
    let run = page.get("/api/run?run=1").json();
    assert!(run["checkpoints"]["list"].as_array().unwrap().is_empty(), "{run}");
    assert!(run["traces"].as_array().unwrap().is_empty() && run["health"]["flight"].is_null(), "{run}");
    let port = page.address.rsplit_once(':').unwrap().1;
    for host in ["evil.example", &format!("evil.example:{port}"), "127.0.0.1:1", &format!("10.0.0.1:{port}")] {
        for path in ["/", "/api/runs"] {
            assert_eq!(page.ask("GET", path, host, "").status, 403, "{host}");
        }
    }
    assert_eq!(page.ask("GET", "/", &format!("localhost:{port}"), "").status, 200);
    assert_eq!(page.ask("POST", "/api/runs", &page.address, "Content-Length: 0\r\n").status, 405);
    for (path, name) in
        [("/api/series?x=miles&runs=1", "x: expected step"), ("/api/series?x=step&from=2&to=1&runs=1", "from:")]
    {
        let answer = page.get(path);
        assert!(answer.status == 400 && answer.body.contains(name), "{path}: {}", answer.body);
    }
}

#[test]
fn what_cannot_be_served_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let refused = |arguments: &[&str], code: i32, words: &[&str]| {
        let output = Command::new(program()).arg("ui").args(arguments).current_dir(folder.path()).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {said}");
        assert!(words.iter().all(|word| said.contains(word)), "{arguments:?}: {said}");
    };
    refused(&["nowhere"], 2, &["nowhere", "no such folder"]);
    refused(&["."], 2, &["no run in .", "metrics.jsonl"]);
    refused(&[".", "--memory", "0"], 2, &["--memory", "found 0"]);
    refused(&[".", "--host", "example.org"], 2, &["--host"]);
    std::fs::write(folder.path().join("metrics.jsonl"), "").unwrap();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    refused(&[".", "--port", &port], 1, &["cannot listen", &port, "--port 0"]);
}

/// Words in a configuration, such as `default`, do not count as problems; warnings of the run and
/// of its ranks do.
#[test]
fn health_shows_warnings_and_errors_whatever_their_words() {
    let folder = tempfile::tempdir().unwrap();
    train(folder.path(), "a", &["train.train_iters=2", "logger.log_interval=1", "scheduler.lr_warmup_iters=0"]);
    let logs = folder.path().join("runs/a");
    let said = std::fs::read_to_string(logs.join("train.log")).unwrap();
    let line = |text: &str| format!(" [2026-01-01 00:00:00] {text}\n");
    let more = [line("all defaults; no error, no restart"), line("warning: the disk is full"), line("error: it broke")];
    std::fs::write(logs.join("train.log"), said + &more.concat()).unwrap();
    std::fs::create_dir_all(logs.join("ranks")).unwrap();
    std::fs::write(logs.join("ranks/rank_00003.log"), "warning: this one\n").unwrap();
    let steps = "{\"kind\":\"train\",\"iteration\":3,\"loss\":\"NaN\",\"skipped\":1}\n";
    let metrics = std::fs::read_to_string(logs.join("metrics.jsonl")).unwrap();
    std::fs::write(logs.join("metrics.jsonl"), metrics + steps).unwrap();
    let page = Page::open(folder.path(), &["runs"]);
    page.wait("files are read", |runs| runs[0]["reading"] == "whole");
    let health = page.get(&format!("/api/run?run={}", page.runs()[0]["id"])).json()["health"].clone();
    let found: Vec<[String; 3]> = health["events"]
        .as_array()
        .unwrap()
        .iter()
        .map(|event| ["rank", "level", "text"].map(|key| event[key].to_string().replace('"', "")))
        .collect();
    let expected = [["3", "warning", "this one"], ["0", "warning", "the disk is full"], ["0", "error", "it broke"]];
    assert_eq!(found, expected, "{health}");
    assert_eq!((&health["steps"]["skipped"], &health["steps"]["not_finite"]), (&1.into(), &1.into()));
}

#[test]
fn heartbeats_restarts_and_scores_of_ranks_are_shown() {
    let folder = tempfile::tempdir().unwrap();
    train(folder.path(), "a", &["train.train_iters=2"]);
    let logs = folder.path().join("runs/a");
    let sign = |rank: usize| RankSign {
        rank,
        process: 7,
        section: "step".into(),
        seconds: 0.5,
        limit: Some(10.0),
        heard: 1_700_000_000,
    };
    let mut supervision =
        Supervision { written: 1_700_000_001, max_restarts: 3, restarts: Vec::new(), ranks: vec![sign(0), sign(1)] };
    supervision.restarted(Restart {
        number: 1,
        at: 1_699_999_999,
        why: "was killed by signal 9".into(),
        from: "iteration 10".into(),
    });
    supervision.write(&logs).unwrap();
    let score = |rank: usize| RankScore {
        rank,
        node: "n".into(),
        relative: Some(1.0 / (rank + 1) as f64),
        individual: None,
        times: [0.1, 0.0, 0.2],
        is_slow: rank == 1,
    };
    RankScores { iteration: 64, ranks: vec![score(0), score(1)] }.write(&logs).unwrap();
    let page = Page::open(folder.path(), &["runs"]);
    let id = page.runs()[0]["id"].to_string();
    let health = page.get(&format!("/api/run?run={id}")).json()["health"].clone();
    assert_eq!(health["supervision"]["restarts"][0]["why"], "was killed by signal 9");
    assert_eq!(
        (&health["supervision"]["ranks"][1]["rank"], &health["supervision"]["ranks"][1]["section"]),
        (&1.into(), &"step".into())
    );
    assert_eq!(
        (&health["scores"]["ranks"][1]["relative"], &health["scores"]["ranks"][1]["is_slow"]),
        (&0.5.into(), &true.into())
    );
    // A damaged file is left out, without affecting other files.
    std::fs::write(logs.join("supervision.json"), "{").unwrap();
    let health = page.get(&format!("/api/run?run={id}")).json()["health"].clone();
    assert!(health["supervision"].is_null() && health["scores"].is_object(), "{health}");
}
