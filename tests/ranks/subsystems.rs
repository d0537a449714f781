//! Interface of the loop: the events and requests of a program's subsystems and sinks, and the
//! agreement of ranks on them.

use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use bridge_core::logging::{Figure, Record, RunEnd, SaveRecord, Sink, SinkError};
use bridge_core::train::{
    ExitReason, Loaded, LoopRequest, RunContext, RunOptions, StepReport, Subsystem, SubsystemError, TrainEnd, pretrain,
    rank_timeout, run_on_threads,
};
use bridge_dist::mesh::ProcessGroups;
use serde_json::{Map, Value};

use super::{config, options};

type Events = Arc<Mutex<Vec<String>>>;

/// Records its events, and calls `judge` after each step.
struct Watcher {
    name: &'static str,
    events: Events,
    steps: u64,
    judge: Box<dyn FnMut(u64) -> Result<LoopRequest, SubsystemError> + Send>,
}

impl Watcher {
    fn new(
        name: &'static str,
        events: &Events,
        judge: impl FnMut(u64) -> Result<LoopRequest, SubsystemError> + Send + 'static,
    ) -> Box<Self> {
        Box::new(Self { name, events: Arc::clone(events), steps: 0, judge: Box::new(judge) })
    }

    fn saw(&self, event: impl std::fmt::Display) {
        self.events.lock().unwrap().push(format!("{} {event}", self.name));
    }
}

impl Subsystem for Watcher {
    fn name(&self) -> &str {
        self.name
    }

    fn on_run_start(&mut self, run: &mut RunContext) -> Result<(), SubsystemError> {
        self.saw(format!("start on {} of {}", run.groups.world().rank(), run.groups.world().size()));
        Ok(())
    }

    fn before_step(&mut self, run: &mut RunContext) -> Result<(), SubsystemError> {
        self.saw(format!("before {}", run.state.train_state.step + 1));
        Ok(())
    }

    fn measure(&mut self, _run: &mut RunContext, step: &mut StepReport) -> Result<(), SubsystemError> {
        step.figures.push(Figure::new("watched", "", "What a subsystem adds", step.iteration).file());
        Ok(())
    }

    fn after_step(&mut self, _run: &mut RunContext, step: &StepReport) -> Result<LoopRequest, SubsystemError> {
        self.steps += 1;
        self.saw(format!("after {}", step.iteration));
        (self.judge)(step.iteration)
    }

    fn on_save(&mut self, _run: &mut RunContext, state: &mut Map<String, Value>) -> Result<(), SubsystemError> {
        state.insert(format!("watcher.{}", self.name), self.steps.into());
        Ok(())
    }

    fn after_save(&mut self, _run: &mut RunContext, folder: &Path) -> Result<(), SubsystemError> {
        self.saw(format!("saved {}", folder.file_name().unwrap().to_string_lossy()));
        Ok(())
    }

    fn on_load(&mut self, _run: &mut RunContext, loaded: &Loaded) -> Result<(), SubsystemError> {
        self.steps = loaded.field(&format!("watcher.{}", self.name))?.expect("the checkpoint has it");
        self.saw(format!("loaded {}", self.steps));
        Ok(())
    }

    fn on_run_end(&mut self, _run: &mut RunContext, end: TrainEnd<'_>) -> Result<(), SubsystemError> {
        self.saw(end.map_or_else(ToString::to_string, ToString::to_string));
        Ok(())
    }
}

/// A sink that keeps its records, and fails if `fails` is set.
struct Keep {
    events: Events,
    fails: bool,
}

impl Sink for Keep {
    fn name(&self) -> &str {
        "keep"
    }

    fn on_record(&mut self, record: &Record) -> Result<(), SinkError> {
        let watched = record.number("watched").map_or_else(String::new, |watched| format!(" watched {watched}"));
        let event = format!("{} {}{watched}", record.kind.name(), record.iteration);
        self.events.lock().unwrap().push(event);
        if self.fails { Err("no more room".into()) } else { Ok(()) }
    }

    fn on_save(&mut self, save: &SaveRecord) -> Result<(), SinkError> {
        self.events.lock().unwrap().push(format!("save {}", save.iteration));
        Ok(())
    }

    fn on_run_end(&mut self, end: &mut RunEnd) -> Result<(), SinkError> {
        self.events.lock().unwrap().push(format!("end {}", end.iteration));
        Ok(())
    }
}

/// A checkpoint folder in `folder`, and a few steps.
fn saving(folder: &Path, iterations: usize) -> [String; 4] {
    let save = format!("checkpoint.save={:?}", folder.join("saved"));
    let iterations = format!("train.train_iters={iterations}");
    [save, iterations, "validation.eval_iters=0".to_owned(), "logger.log_interval=1".to_owned()]
}

fn recipe_in(folder: &Path, ranks: usize, iterations: usize) -> bridge_core::config::RunConfig {
    let overrides = saving(folder, iterations);
    config(folder, ranks, &overrides.each_ref().map(String::as_str))
}

#[test]
fn subsystems_are_called_in_the_order_of_registration_and_get_their_state_back() {
    let folder = tempfile::tempdir().unwrap();
    let overrides = saving(folder.path(), 4);
    let mut overrides: Vec<&str> = overrides.iter().map(String::as_str).collect();
    overrides.push("train.exit_interval=1");
    let run = || {
        let events = Events::default();
        let mut options = options(ProcessGroups::single());
        for name in ["first", "second"] {
            options.subsystems.push(Watcher::new(name, &events, |_| Ok(LoopRequest::default())));
        }
        options.sinks.push(Box::new(Keep { events: Arc::clone(&events), fails: false }));
        pretrain(config(folder.path(), 1, &overrides), options).unwrap();
        events.lock().unwrap().clone()
    };
    assert_eq!(
        run(),
        [
            "first start on 0 of 1",
            "second start on 0 of 1",
            "first before 1",
            "second before 1",
            "train 1 watched 1",
            "first after 1",
            "second after 1",
            "save 1",
            "first saved iter_0000001",
            "second saved iter_0000001",
            "first exiting program at iteration 1",
            "second exiting program at iteration 1",
            "end 1",
        ]
    );
    assert_eq!(run()[..2], ["first loaded 1", "second loaded 1"]);
    let metrics = std::fs::read_to_string(folder.path().join("logs/metrics.jsonl")).unwrap();
    assert!(metrics.lines().all(|line| line.contains("\"watched\":")), "{metrics}");
}

/// Runs two ranks, of which only rank 1 has a subsystem, which runs `judge`. Returns the result of
/// each rank.
fn two_ranks(
    folder: &Path,
    judge: impl Fn(u64) -> Result<LoopRequest, SubsystemError> + Clone + Send + Sync + 'static,
) -> Vec<Result<ExitReason, String>> {
    let config = recipe_in(folder, 2, 6);
    let ends = Mutex::new(vec![Err(String::new()), Err(String::new())]);
    let outcome = run_on_threads(&config, rank_timeout(&config), |groups| {
        let rank = groups.world().rank();
        let mut options: RunOptions = options(groups);
        if rank == 1 {
            options.subsystems.push(Watcher::new("judge", &Events::default(), judge.clone()));
        }
        let end = pretrain(config.clone(), options);
        ends.lock().unwrap()[rank] = end.as_ref().map(|report| report.reason.clone()).map_err(ToString::to_string);
        end.map(drop)
    });
    let ends = ends.into_inner().unwrap();
    assert_eq!(outcome.is_ok(), ends.iter().all(Result::is_ok));
    ends
}

#[test]
fn what_one_rank_asks_for_all_ranks_do() {
    let folder = tempfile::tempdir().unwrap();
    let ends = two_ranks(folder.path(), |step| {
        Ok(match step {
            2 => LoopRequest::default().save(),
            4 => LoopRequest::default().note("enough is enough").exit(5, "the loss is low enough"),
            _ => LoopRequest::default(),
        })
    });
    let expected = ExitReason::Subsystem(5, "the loss is low enough".into());
    assert_eq!(expected.exit_code(), 5);
    assert_eq!(expected.to_string(), "exiting with code 5: the loss is low enough");
    assert_eq!(ends, [Ok(expected.clone()), Ok(expected)]);
    for (iteration, is_there) in [(2, true), (3, false), (4, true)] {
        let checkpoint = folder.path().join(format!("saved/iter_{iteration:07}"));
        assert_eq!(checkpoint.is_dir(), is_there, "{iteration}");
    }
}

#[test]
fn a_subsystem_that_fails_on_one_rank_ends_the_run_on_all() {
    let folder = tempfile::tempdir().unwrap();
    let ends = two_ranks(folder.path(), |step| match step {
        3 => Err(SubsystemError::Subsystem { name: "judge".into(), source: "no heartbeat".into() }),
        _ => Ok(LoopRequest::default()),
    });
    assert_eq!(ends[1], Err("judge: no heartbeat".to_owned()));
    let other = ends[0].as_ref().unwrap_err();
    assert!(other.contains("rank 1 failed while calling its subsystems"), "{other}");
    // The step was reported before.
    let metrics = std::fs::read_to_string(folder.path().join("logs/metrics.jsonl")).unwrap();
    assert_eq!(metrics.lines().count(), 3, "{metrics}");
}

#[test]
fn a_sink_that_fails_ends_no_run() {
    let folder = tempfile::tempdir().unwrap();
    let events = Events::default();
    let mut options = options(ProcessGroups::single());
    options.sinks.push(Box::new(Keep { events: Arc::clone(&events), fails: true }));
    pretrain(recipe_in(folder.path(), 1, 3), options).unwrap();
    assert_eq!(*events.lock().unwrap(), ["train 1", "train 2", "train 3", "save 3", "end 3"]);
}

/// Answer of the Prometheus endpoint.
fn scrape(address: &str) -> std::io::Result<String> {
    let mut stream = std::net::TcpStream::connect(address)?;
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: bridge\r\n\r\n")?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    Ok(text)
}

#[test]
fn prometheus_finds_every_figure_while_a_run_trains() {
    let address = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    for ranks in [1, 2] {
        let folder = tempfile::tempdir().unwrap();
        let mut overrides = saving(folder.path(), 3).to_vec();
        overrides.push(format!("logger.prometheus_addr={address:?}"));
        let overrides: Vec<&str> = overrides.iter().map(String::as_str).collect();
        let config = config(folder.path(), ranks, &overrides);
        let pages: Arc<Mutex<Vec<String>>> = Arc::default();
        run_on_threads(&config, rank_timeout(&config), |groups| {
            let (seen, from) = (Arc::clone(&pages), address.clone());
            let is_first = groups.world().rank() == 0;
            let mut options = options(groups);
            if is_first {
                options.subsystems.push(Watcher::new("scraper", &Events::default(), move |_| {
                    seen.lock().unwrap().push(scrape(&from).expect("rank 0 answers"));
                    Ok(LoopRequest::default())
                }));
            }
            pretrain(config.clone(), options).map(drop)
        })
        .unwrap();
        let pages = pages.lock().unwrap().clone();
        assert_eq!(pages.len(), 3);
        let metrics = std::fs::read_to_string(folder.path().join("logs/metrics.jsonl")).unwrap();
        for (page, line) in pages.iter().zip(metrics.lines()) {
            let (head, body) = page.split_once("\r\n\r\n").unwrap();
            assert!(head.starts_with("HTTP/1.1 200 OK") && head.contains("application/openmetrics-text"), "{head}");
            assert!(body.ends_with("# EOF\n"), "{body}");
            // Every number of metrics.jsonl is there, under a name that begins with its own.
            let figures: Map<String, Value> = serde_json::from_str(line).unwrap();
            for (name, value) in figures.iter().filter(|(_, value)| value.is_number()) {
                let is_it = |line: &&str| line.starts_with(&format!("bridge_train_{name}"));
                let values = body.lines().filter(is_it).filter_map(|line| line.rsplit_once(' ')?.1.parse::<f32>().ok());
                let expected = value.as_f64().unwrap() as f32;
                assert!(values.clone().any(|found| found == expected), "{name} = {expected} in {body}");
            }
            assert!(body.contains("bridge_train_losses{name=\"lm loss\"}"), "{body}");
        }
        assert!(scrape(&address).is_err(), "the port is free at the end");
    }
}

#[test]
fn a_run_trains_where_the_address_for_prometheus_is_in_use() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let folder = tempfile::tempdir().unwrap();
    let address = format!("logger.prometheus_addr=\"{}\"", taken.local_addr().unwrap());
    pretrain(config(folder.path(), 1, &[&address]), options(ProcessGroups::single())).unwrap();
    let log = std::fs::read_to_string(folder.path().join("logs/train.log")).unwrap();
    assert!(log.contains("logger.prometheus_addr: cannot listen on 127.0.0.1:"), "{log}");
}

/// Files under a folder that contain a text.
fn files_with(folder: &Path, text: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files_with(&path, text));
        } else if std::fs::read(&path).unwrap().windows(text.len()).any(|part| part == text.as_bytes()) {
            found.push(path);
        }
    }
    found
}

#[test]
fn a_run_goes_on_while_its_trackers_are_away_and_no_file_has_their_passwords() {
    let trackers = [
        "logger.mlflow_experiment=e",
        "logger.mlflow_run_name=r",
        "logger.mlflow_tracking_uri=http://user:PASSWORD77@127.0.0.1:9",
        "logger.mlflow_tags={api_token=\"PASSWORD77\", team=\"a\"}",
        "logger.otlp_endpoint=http://user:PASSWORD77@127.0.0.1:9/?token=PASSWORD77",
        "train.exit_interval=1",
    ];
    let folder = tempfile::tempdir().unwrap();
    let overrides = saving(folder.path(), 3);
    let overrides: Vec<&str> = overrides.iter().map(|text| &**text).chain(trackers).collect();
    for step in 1..=3 {
        let config = config(folder.path(), 1, &overrides);
        let report = pretrain(config, options(ProcessGroups::single())).unwrap();
        assert_eq!(report.train_state.step, step);
    }
    assert_eq!(files_with(folder.path(), "PASSWORD77"), Vec::<PathBuf>::new());
    assert!(!files_with(folder.path(), "http://***@127.0.0.1:9").is_empty());
}
