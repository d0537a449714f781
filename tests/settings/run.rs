//! Runs of the `bridge` binary in folders of their own, each made once however many rows want it.

use std::collections::{BTreeSet, HashMap};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, LazyLock, Mutex, OnceLock};
use std::time::{Duration, Instant};

use bridge_tests::{program, root};

use super::facets::Facets;
use super::{files, library};

/// A run that takes longer hangs.
const LIMIT: Duration = Duration::from_secs(200);

/// Program to run.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Program {
    /// `bridge train`.
    Train,
    /// A program that uses the library.
    Library,
    /// `bridge plan`, with `--measure` if that is set.
    Plan {
        /// True if steps are run and their traffic counted.
        measure: bool,
    },
    /// `bridge plan --measure` with links of a given rate.
    Linked,
    /// `bridge plan` for a GPU of this name.
    OnGpu(&'static str),
    /// `bridge config schedule`.
    Schedule,
    /// `bridge data samples` of a split.
    Samples(&'static str),
}

/// Interference with a run while it trains.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Meddling {
    /// No interference.
    None,
    /// The run's threads, mapped files and memory are observed.
    Watch,
    /// The run's output is not read, so that rank 0 blocks when the pipe is full; the run is ended
    /// after this many seconds.
    Clog(u64),
    /// The process runs on a terminal.
    Terminal,
    /// The process gets this signal when it has trained a step.
    Signal(&'static str),
}

/// Facets of a run, computed once at the first request.
type Cell = Arc<OnceLock<Arc<Facets>>>;

/// Everything that determines a run.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Run {
    program: Program,
    recipe: &'static str,
    ranks: usize,
    overrides: Vec<String>,
    /// Arguments of a run before this one, in the same folder. Settings that are laid over later do
    /// not reach it.
    before: Option<Vec<String>>,
    meddling: Meddling,
    /// Files to damage between the run before and this one.
    damaged: Option<&'static str>,
}

impl Run {
    /// A run of a recipe on one rank.
    pub fn new(program: Program, recipe: &'static str, overrides: &[&str]) -> Self {
        Self {
            program,
            recipe,
            ranks: 1,
            overrides: overrides.iter().map(|text| (*text).to_owned()).collect(),
            before: None,
            meddling: Meddling::None,
            damaged: None,
        }
    }

    /// The run with more overrides, which replace those of the same keys.
    pub fn with(&self, overrides: &[&str]) -> Self {
        let mut run = self.clone();
        let key = |text: &str| text.split_once('=').map(|(key, _)| key.to_owned());
        let keys: Vec<_> = overrides.iter().filter_map(|text| key(text)).collect();
        run.overrides.retain(|text| key(text).is_none_or(|key| !keys.contains(&key)));
        run.overrides.extend(overrides.iter().map(|text| (*text).to_owned()));
        run
    }

    /// The same run on `ranks` ranks.
    pub fn ranks(&self, ranks: usize) -> Self {
        Self { ranks, ..self.clone() }
    }

    /// The run by another command.
    pub fn by(&self, program: Program) -> Self {
        Self { program, ..self.clone() }
    }

    /// The run after a training run in the same folder.
    pub fn after(&self, before: &[&str]) -> Self {
        let first = Self { program: Program::Train, meddling: Meddling::None, ..self.clone() };
        Self { before: Some(first.with(before).arguments()), ..self.clone() }
    }

    /// The same run with an interference.
    pub fn while_(&self, meddling: Meddling) -> Self {
        Self { meddling, ..self.clone() }
    }

    /// The run with a damaged file of the run before.
    pub fn with_damaged(&self, file: &'static str) -> Self {
        Self { damaged: Some(file), ..self.clone() }
    }

    /// True if it waits more than it works.
    pub fn waits(&self) -> bool {
        matches!(self.meddling, Meddling::Clog(_))
    }

    /// Recipe of the run.
    pub fn recipe(&self) -> PathBuf {
        root().join("recipes").join(self.recipe)
    }

    /// Overrides of the run.
    pub fn overrides(&self) -> &[String] {
        &self.overrides
    }

    /// Facets of the run.
    pub fn observe(&self) -> Arc<Facets> {
        static SEEN: LazyLock<Mutex<HashMap<Run, Cell>>> = LazyLock::new(Mutex::default);
        let cell = Arc::clone(SEEN.lock().unwrap().entry(self.clone()).or_default());
        Arc::clone(cell.get_or_init(|| Arc::new(self.make())))
    }

    fn make(&self) -> Facets {
        let folder = tempfile::tempdir().unwrap();
        let at = folder.path();
        files::copy_to(&at.join("data"));
        if let Some(before) = &self.before {
            let mut arguments = before.clone();
            arguments.push("logger.log_dir=logs_before".into());
            let ended = self.started(at, &arguments, "before").wait().unwrap();
            let errors = std::fs::read_to_string(at.join("before.err")).unwrap();
            // 16 asks to be started again.
            assert!(matches!(ended.code(), Some(0 | 16)), "the run before {arguments:?}: {errors}");
        }
        if let Some(file) = self.damaged {
            let mut bytes = std::fs::read(at.join(file)).unwrap();
            let last = bytes.len() - 1;
            bytes[last] ^= 1;
            std::fs::write(at.join(file), bytes).unwrap();
        }
        let (status, watched) = self.meddle(at, self.started(at, &self.arguments(), "main"));
        Facets::observe(at, status, &self.program, watched)
    }

    fn arguments(&self) -> Vec<String> {
        let recipe = self.recipe().to_str().unwrap().to_owned();
        let ranks = self.ranks.to_string();
        let start: Vec<&str> = match &self.program {
            Program::Library => vec![&recipe],
            Program::Train => vec!["train", &recipe, "--ranks", &ranks],
            Program::Plan { measure: false } => vec!["plan", &recipe, "--json", "--world-size", &ranks],
            Program::Plan { measure: true } => vec!["plan", &recipe, "--json", "--measure", "--world-size", &ranks],
            Program::Linked => {
                vec!["plan", &recipe, "--json", "--measure", "--link-gbps", "1", "--world-size", &ranks]
            }
            Program::OnGpu(gpu) => vec!["plan", &recipe, "--json", "--gpu", gpu, "--world-size", &ranks],
            Program::Schedule => vec!["config", "schedule", &recipe, "--json", "--ranks", &ranks],
            Program::Samples(split) => vec!["data", "samples", &recipe, "--json", "--split", split],
        };
        start.into_iter().map(str::to_owned).chain(self.overrides.iter().cloned()).collect()
    }

    fn started(&self, folder: &Path, arguments: &[String], name: &str) -> Child {
        let file = |end: &str| File::create(folder.join(format!("{name}.{end}"))).unwrap();
        let mut command = Command::new(program());
        if self.meddling == Meddling::Terminal {
            let words: Vec<String> =
                arguments.iter().map(|word| format!("'{}'", word.replace('\'', "'\\''"))).collect();
            command = Command::new("script");
            command.args(["-qec", &format!("{} {}", program().display(), words.join(" ")), "/dev/null"]);
        } else if self.program == Program::Library {
            command = library::command(arguments);
        } else {
            command.args(arguments);
        }
        let output = if matches!(self.meddling, Meddling::Clog(_)) { Stdio::piped() } else { file("out").into() };
        command.current_dir(folder).stdin(Stdio::null()).stdout(output).stderr(file("err"));
        command.spawn().expect("the program starts")
    }

    /// Waits for the end of the process; meanwhile watches it or sends signals, depending on
    /// `meddling`.
    fn meddle(&self, folder: &Path, mut child: Child) -> (ExitStatus, Watched) {
        let started = Instant::now();
        let mut watched = Watched::default();
        let mut is_sent = false;
        loop {
            if let Some(status) = child.try_wait().unwrap() {
                return (status, watched);
            }
            if let Meddling::Clog(seconds) = self.meddling
                && started.elapsed() > Duration::from_secs(seconds)
            {
                child.kill().unwrap();
            }
            if started.elapsed() > LIMIT {
                child.kill().unwrap();
                panic!("{self:?} takes longer than {LIMIT:?}");
            }
            match self.meddling {
                Meddling::Watch => watched.look(child.id(), folder),
                Meddling::Signal(name) if !is_sent && has_trained(folder) => {
                    // The log tells of a step before the run looks for signals.
                    std::thread::sleep(Duration::from_millis(20));
                    let process = child.id().to_string();
                    assert!(Command::new("kill").args(["-s", name, &process]).status().unwrap().success());
                    is_sent = true;
                }
                _ => {}
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

fn has_trained(folder: &Path) -> bool {
    std::fs::read_to_string(folder.join("logs/metrics.jsonl")).is_ok_and(|text| text.contains("\"train\""))
}

/// Observations of a process while it ran.
#[derive(Debug, Default)]
pub struct Watched {
    /// Names of threads: one that has just begun may still have the name of the thread that began
    /// it.
    pub threads: BTreeSet<String>,
    /// True if a token file was mapped.
    pub maps_tokens: bool,
    /// True if curves were on disk before the fifth step, the last one of observed runs: its save
    /// is on disk.
    pub writes_early: bool,
    /// The most memory it held.
    pub peak_kilobytes: u64,
}

impl Watched {
    /// Reads the state of the process once.
    fn look(&mut self, process: u32, folder: &Path) {
        // Before it becomes the program it is a copy of this one.
        let is_started = std::fs::read_link(format!("/proc/{process}/exe")).is_ok_and(|path| path.ends_with("bridge"));
        if !is_started {
            return;
        }
        for task in std::fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten() {
            let name = std::fs::read_to_string(task.path().join("comm")).unwrap_or_default();
            self.threads.insert(name.trim().to_owned());
        }
        let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
        let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")?.split_whitespace().next()?.parse().ok());
        self.peak_kilobytes = peak.unwrap_or(self.peak_kilobytes);
        let events = std::fs::read_dir(folder.join("logs/tensorboard")).into_iter().flatten().flatten();
        let bytes: u64 = events.map(|file| file.metadata().map_or(0, |file| file.len())).sum();
        // A version alone takes less than 100 bytes, a step more than 300.
        let metrics = std::fs::read_to_string(folder.join("logs/metrics.jsonl")).unwrap_or_default();
        self.writes_early |= bytes > 300 && !metrics.is_empty() && !metrics.contains("\"iteration\":5");
        let maps = std::fs::read_to_string(format!("/proc/{process}/maps")).unwrap_or_default();
        self.maps_tokens |= maps.lines().any(|line| line.ends_with(".bin"));
    }
}
