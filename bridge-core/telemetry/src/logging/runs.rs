//! Summary of the runs that have left files in their log folders: state, progress, losses. Reads
//! their files only, and writes none.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs::TryLockError;
use std::path::{Path, PathBuf};

use bridge_data::untrusted_io;
use serde::Serialize;
use serde_json::Value;

use super::losses::{CollectedLosses, Losses};
use super::sinks::each_record;

pub use super::sinks::{RunRecord, read_record};

/// Folders below the one asked for in which runs are looked for.
const DEPTH: usize = 4;
/// Folders that are looked into at most: a search that was begun in a wrong place ends.
const MOST_FOLDERS: usize = 20_000;

/// State of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RunState {
    /// The run trains.
    Training,
    /// The run has finished.
    Finished,
    /// The run stopped on request.
    Stopped,
    /// The run ended with an error.
    Failed,
    /// The run ended without recording an end.
    Killed,
    /// The run's release did not record states.
    Unknown,
}

impl fmt::Display for RunState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

/// A run, as its files have it.
#[derive(Clone, Debug, Serialize)]
pub struct Run {
    /// Name of its recipe.
    pub name: String,
    /// Identity of the run; `None` for runs of releases that recorded none.
    pub id: Option<String>,
    /// The folder of its logs.
    pub folder: PathBuf,
    /// State of the run.
    pub state: RunState,
    /// Why it stopped or failed.
    pub why: Option<String>,
    /// Iterations done.
    pub iterations: u64,
    /// Iterations in all.
    pub train_iters: Option<u64>,
    /// Loss of the last iteration; a text where it is not finite.
    pub last_loss: Option<Value>,
    /// The lowest loss of the validation split.
    pub best_valid_loss: Option<f64>,
    /// Iteration of the best validation loss.
    pub best_valid_iteration: Option<u64>,
    /// The last loss of the validation split.
    pub last_valid_loss: Option<f64>,
    /// Tokens trained on.
    pub tokens: u64,
    /// Time spent in steps, in seconds.
    pub seconds: f64,
    /// Mean speed over all steps.
    pub tokens_per_second: Option<f64>,
    /// When its last job began, local time.
    pub started: Option<String>,
    /// The resolved configuration, as TOML.
    #[serde(skip)]
    pub config: Option<String>,
    /// Losses of the run.
    #[serde(skip)]
    pub losses: Losses,
}

/// Runs that were found, and folders and files that could not be read.
#[derive(Debug, Default)]
pub struct Found {
    /// In the order of their folders.
    pub runs: Vec<Run>,
    /// Folders and files that look like those of a run and cannot be read, with the reason.
    pub damaged: Vec<String>,
}

/// Finds the runs in a folder: those of its own logs, and of the folders in it.
pub fn find(folder: &Path) -> Found {
    let mut found = Found::default();
    let Folders { folders, problems } = log_folders(folder);
    for folder in folders {
        match read(&folder) {
            Ok(run) => found.runs.push(run),
            Err(problem) => found.damaged.push(problem),
        }
    }
    found.damaged.extend(problems);
    found
}

/// Log folders of runs, and folders that cannot be looked into.
#[derive(Debug, Default)]
pub struct Folders {
    /// In their order.
    pub folders: Vec<PathBuf>,
    /// Problems with other folders.
    pub problems: Vec<String>,
}

/// Finds the folders of runs without reading what is in them.
pub fn log_folders(root: &Path) -> Folders {
    let mut found = Folders::default();
    if !root.is_dir() {
        found.problems.push(format!("{}: is no folder", root.display()));
        return found;
    }
    let mut left = vec![(root.to_owned(), DEPTH)];
    for number in 0.. {
        let Some((folder, depth)) = left.pop() else { break };
        if number == MOST_FOLDERS {
            let message = format!("{}: has more than {MOST_FOLDERS} folders; the rest was left out", root.display());
            found.problems.push(message);
            break;
        }
        if folder.join("metrics.jsonl").exists() {
            found.folders.push(folder.clone());
        }
        if depth == 0 {
            continue;
        }
        match std::fs::read_dir(&folder) {
            Ok(entries) => {
                let folders: BTreeSet<PathBuf> =
                    entries.flatten().filter(may_hold_runs).map(|entry| entry.path()).collect();
                left.extend(folders.into_iter().rev().map(|folder| (folder, depth - 1)));
            }
            Err(error) => found.problems.push(format!("{}: {error}", folder.display())),
        }
    }
    found
}

/// True for folders that may hold runs. Links are not followed: they may lead round in circles.
/// Checkpoints hold no runs.
fn may_hold_runs(entry: &std::fs::DirEntry) -> bool {
    let name = entry.file_name();
    let name = name.to_string_lossy();
    entry.file_type().is_ok_and(|kind| kind.is_dir()) && !name.starts_with('.') && !name.starts_with("iter_")
}

/// Reads the run whose logs are in `folder`.
///
/// # Errors
/// Files that are damaged, with their names.
pub fn read(folder: &Path) -> Result<Run, String> {
    let path = folder.join("metrics.jsonl");
    drop(untrusted_io::open(&path).map_err(|error| format!("{}: {error}", path.display()))?);
    let (mut losses, mut last, mut id) = (CollectedLosses::default(), None, None);
    let (mut seconds, mut tokens) = (0.0, 0.0);
    let read = each_record(&path, |record| {
        let number = |key: &str| record.get(key).and_then(Value::as_f64);
        losses.add(&record);
        id = record.get("run").and_then(Value::as_str).map(str::to_owned);
        if record.get("kind").and_then(Value::as_str) == Some("train") {
            seconds += number("seconds").unwrap_or(0.0);
            tokens += number("tokens_per_second").zip(number("seconds")).map_or(0.0, |(rate, time)| rate * time);
            last = Some(record);
        }
        Ok(())
    });
    read.map_err(|error| error.to_string())?;
    let record = if folder.join("run.json").exists() { Some(read_record(folder)?) } else { None };
    let losses = losses.finish();
    let best = losses.validation.iter().copied().min_by(|a, b| a.1.total_cmp(&b.1));
    let name = folder.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    Ok(Run {
        name: record.as_ref().map_or(name, |record| record.name.clone()),
        id,
        folder: folder.to_owned(),
        state: state_of(folder, record.as_ref()),
        iterations: last.as_ref().and_then(|last| last.get("iteration")?.as_u64()).unwrap_or(0),
        train_iters: record.as_ref().map(|record| record.train_iters),
        last_loss: last.and_then(|mut last| last.remove("loss")),
        best_valid_loss: best.map(|best| best.1),
        best_valid_iteration: best.map(|best| best.0 as u64),
        last_valid_loss: losses.validation.last().map(|last| last.1),
        tokens: tokens.round() as u64,
        seconds,
        tokens_per_second: (seconds > 0.0).then_some(tokens / seconds),
        started: record.as_ref().map(|record| record.started.clone()),
        why: record.as_ref().and_then(|record| record.why.clone()),
        config: record.map(|record| record.config),
        losses,
    })
}

/// The resolved configuration, as TOML, of the run whose logs are in `folder`; `None` if that does
/// not say.
pub fn recipe_of(folder: &Path) -> Option<String> {
    read_record(folder).ok().map(|record| record.config)
}

/// State of the run whose logs are in `folder`, from its `run.json` and its lock.
pub fn state_of(folder: &Path, record: Option<&RunRecord>) -> RunState {
    let lock = untrusted_io::open(&folder.join(".lock"));
    let is_locked = lock.is_ok_and(|(file, _)| matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock)));
    match record.map(|record| record.state.as_str()) {
        _ if is_locked => RunState::Training,
        Some("finished") => RunState::Finished,
        Some("stopped") => RunState::Stopped,
        Some("failed") => RunState::Failed,
        Some(_) => RunState::Killed,
        None => RunState::Unknown,
    }
}

/// A setting in which runs differ, with its value in each of them; `None` where it is not set.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Difference {
    /// Dotted path.
    pub key: String,
    /// In the order of the runs.
    pub values: Vec<Option<String>>,
}

/// The settings in which the configurations of `runs` differ. Runs without a known configuration
/// have no values.
pub fn differences(runs: &[Run]) -> Vec<Difference> {
    let configs: Vec<&str> = runs.iter().map(|run| run.config.as_deref().unwrap_or_default()).collect();
    differences_of_configs(&configs)
}

/// The settings in which resolved configurations, as TOML, differ.
pub fn differences_of_configs(configs: &[&str]) -> Vec<Difference> {
    let by_path = |config: &&str| settings(config, ".").into_iter().map(|(path, value)| (path, value.to_string()));
    let settings: Vec<BTreeMap<_, _>> = configs.iter().map(|config| by_path(config).collect()).collect();
    let keys: BTreeSet<&String> = settings.iter().flat_map(|settings| settings.keys()).collect();
    let of_key = |key: &String| Difference {
        key: key.clone(),
        values: settings.iter().map(|settings| settings.get(key).cloned()).collect(),
    };
    let differs = |difference: &Difference| difference.values.iter().any(|value| *value != difference.values[0]);
    keys.into_iter().map(of_key).filter(differs).collect()
}

/// All settings of a configuration with their paths, of which `separator` joins the names. A text
/// that is no TOML has none.
pub(super) fn settings(config: &str, separator: &str) -> Vec<(String, toml::Value)> {
    let mut settings = Vec::new();
    if let Ok(table) = config.parse() {
        flatten("", table, separator, &mut settings);
    }
    settings
}

fn flatten(prefix: &str, table: toml::Table, separator: &str, settings: &mut Vec<(String, toml::Value)>) {
    for (key, value) in table {
        let path = if prefix.is_empty() { key } else { format!("{prefix}{separator}{key}") };
        match value {
            toml::Value::Table(table) => flatten(&path, table, separator, settings),
            value => settings.push((path, value)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::time::{Duration, Instant};

    use super::*;

    fn write_run(folder: &Path, record: &RunRecord, losses: &[f64]) {
        std::fs::create_dir_all(folder).unwrap();
        let line = |(place, loss): (usize, &f64)| {
            let iteration = place + 1;
            format!(
                "{{\"kind\":\"train\",\"iteration\":{iteration},\"loss\":{loss},\"seconds\":0.5,\"tokens_per_second\":200}}\n\
                 {{\"kind\":\"valid\",\"iteration\":{iteration},\"loss\":{}}}\n",
                loss + 0.5
            )
        };
        let text: String = losses.iter().enumerate().map(line).collect();
        std::fs::write(folder.join("metrics.jsonl"), text).unwrap();
        std::fs::write(folder.join("run.json"), serde_json::to_string(record).unwrap()).unwrap();
    }

    fn record(name: &str, state: &str, config: &str) -> RunRecord {
        RunRecord {
            name: name.into(),
            state: state.into(),
            why: None,
            started: "2026-01-01 00:00:00".into(),
            ended: None,
            iteration: 0,
            train_iters: 9,
            seq_length: 64,
            world_size: 1,
            config: config.into(),
        }
    }

    #[test]
    fn runs_are_found_and_damaged_ones_named() {
        let root = tempfile::tempdir().unwrap();
        let path = |name: &str| root.path().join(name);
        write_run(&path("b/one"), &record("one", "finished", ""), &[3.0, 2.0, 2.5]);
        write_run(&path("a"), &record("two", "training", ""), &[4.0]);
        std::fs::create_dir_all(path("old")).unwrap();
        std::fs::write(path("old/metrics.jsonl"), "{\"kind\":\"train\",\"iteration\":7,\"loss\":\"NaN\"}\n{\"ki")
            .unwrap();
        std::fs::create_dir_all(path("bad")).unwrap();
        std::fs::write(path("bad/metrics.jsonl"), "no\n{}\n").unwrap();
        std::os::unix::fs::symlink(root.path(), path("circle")).unwrap();
        let found = find(root.path());
        let seen: Vec<_> = found.runs.iter().map(|run| (run.name.as_str(), run.state, run.iterations)).collect();
        assert_eq!(seen, [("two", RunState::Killed, 1), ("one", RunState::Finished, 3), ("old", RunState::Unknown, 7)]);
        assert!(
            found.damaged.len() == 1 && found.damaged[0].contains("bad/metrics.jsonl, line 1"),
            "{:?}",
            found.damaged
        );
        let one = &found.runs[1];
        assert_eq!((one.best_valid_loss, one.best_valid_iteration, one.tokens), (Some(2.5), Some(2), 300));
        assert_eq!((one.last_loss.clone(), one.seconds), (Some(2.5.into()), 1.5));
        assert_eq!((one.last_valid_loss, one.tokens_per_second), (Some(3.0), Some(200.0)));
        assert_eq!(found.runs[2].last_loss, Some("NaN".into()));
        assert_eq!(find(&path("nowhere")).damaged.len(), 1);
    }

    #[test]
    fn a_run_that_holds_its_lock_trains() {
        let root = tempfile::tempdir().unwrap();
        write_run(root.path(), &record("one", "training", ""), &[3.0]);
        let lock = File::create(root.path().join(".lock")).unwrap();
        lock.lock().unwrap();
        assert_eq!(read(root.path()).unwrap().state, RunState::Training);
        drop(lock);
        // A process that another test is starting has a copy of the lock until it is another
        // program.
        let end = Instant::now() + Duration::from_secs(20);
        while read(root.path()).unwrap().state != RunState::Killed {
            assert!(Instant::now() < end, "the lock is gone");
        }
    }

    #[test]
    fn configurations_are_compared_setting_by_setting() {
        let root = tempfile::tempdir().unwrap();
        for (name, config) in [("a", "x = 1\n[m]\ny = [1, 2]\nz = 3\n"), ("b", "x = 1\n[m]\ny = [1, 3]\n")] {
            write_run(&root.path().join(name), &record(name, "finished", config), &[3.0]);
        }
        let runs = find(root.path()).runs;
        let found: Vec<_> = differences(&runs).into_iter().map(|d| (d.key, d.values)).collect();
        let some = |text: &str| Some(text.to_owned());
        assert_eq!(
            found,
            [("m.y".to_owned(), vec![some("[1, 2]"), some("[1, 3]")]), ("m.z".to_owned(), vec![some("3"), None])]
        );
    }
}
