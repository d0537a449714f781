//! `bridge checkpoint`: list, verify, compare and delete checkpoints of a folder.

mod compare;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use bridge_core::checkpoint::{
    Checkpoint, CheckpointError, CheckpointStore, CheckpointSummary, CheckpointWriter, Damage, LoadRequest, Resolution,
    RetentionPolicy, SaveOptions, TensorRecord, Verification,
};
use bridge_core::logging::numbers::duration;
use bridge_core::logging::terminal::complain;
use bridge_core::train::CheckpointsLock;
use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::plan::{bytes, number};
use crate::failure::Failure;
use crate::output::{line, table};

/// Action on checkpoints.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// List the checkpoints of a folder: iteration, size, age, damage that shows without reading
    /// whole files.
    List(Place),
    /// Show what a checkpoint holds: the state of its run, its tensors and files.
    Inspect(Place),
    /// Compare every byte of a checkpoint, or of all in a folder, with its checksum. Exits with 1
    /// if any is damaged.
    Verify(Place),
    /// Compare two checkpoints: settings, counters, tensors and their values. Exits with 1 if they
    /// differ.
    Diff {
        /// A checkpoint, or a folder of checkpoints, of which the latest is taken.
        first: PathBuf,
        /// The one to compare with.
        second: PathBuf,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Delete old checkpoints, as `checkpoint.most_recent_k` does. The latest, the best and the
    /// last intact one stay.
    Prune(Prune),
}

/// Place of checkpoints.
#[derive(Debug, Args)]
pub struct Place {
    /// A folder of checkpoints, or one checkpoint: `ROOT`, `ROOT/iter_0000100`, `ROOT/best`.
    path: PathBuf,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Checkpoints to keep.
#[derive(Debug, Args)]
pub struct Prune {
    /// The folder of checkpoints.
    root: PathBuf,
    /// Number of the newest checkpoints to keep.
    #[arg(long, value_name = "K", value_parser = clap::value_parser!(u32).range(1..))]
    keep: u32,
    /// Keep those whose iteration is a multiple of this too.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    retain_interval: Option<u64>,
    /// Only say what would be deleted.
    #[arg(long)]
    dry_run: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn run(command: &Command) -> Result<u8, Failure> {
    match command {
        Command::List(place) => list(place),
        Command::Inspect(place) => inspect(place),
        Command::Verify(place) => verify(place),
        Command::Diff { first, second, json } => compare::run(first, second, *json),
        Command::Prune(prune) => prune.run(),
    }
}

/// Opens an existing store.
fn store(path: &Path) -> Result<CheckpointStore, Failure> {
    let store = CheckpointStore::open(path).map_err(failed)?;
    if !store.path().exists() {
        return Err(Failure::input(format!("{}: there is no such folder", path.display())));
    }
    Ok(store)
}

/// All checkpoints of a folder, at least one.
fn summaries(store: &CheckpointStore) -> Result<Vec<CheckpointSummary>, Failure> {
    let summaries = store.list().map_err(failed)?;
    if summaries.is_empty() {
        return Err(Failure::input(format!("{}: there is no checkpoint", store.path().display())));
    }
    Ok(summaries)
}

/// The checkpoint at a path, with every byte verified.
fn opened(path: &Path) -> Result<Checkpoint, Failure> {
    let store = store(path)?;
    match store.resolve(&LoadRequest::default()).map_err(failed)? {
        Resolution::Found(found) => Ok(found.checkpoint),
        Resolution::NothingFound { searched } => {
            Err(Failure::input(format!("{}: there is no checkpoint", searched.display())))
        }
    }
}

fn failed(error: CheckpointError) -> Failure {
    if error.is_bad_input() { Failure::input(error) } else { Failure::run(error) }
}

fn unix_seconds(time: Option<SystemTime>) -> Option<u64> {
    Some(time?.duration_since(UNIX_EPOCH).ok()?.as_secs())
}

fn texts(damage: &[Damage]) -> Vec<String> {
    damage.iter().map(Damage::to_string).collect()
}

/// Name of a summary.
fn name(summary: &CheckpointSummary) -> String {
    summary.iteration.map_or_else(|| summary.path.display().to_string(), |iteration| iteration.to_string())
}

fn list(place: &Place) -> Result<u8, Failure> {
    let store = store(&place.path)?;
    let pointers = store.pointers().map_err(failed)?;
    let mut rows = vec![["iteration", "size", "age", "", "folder"].map(str::to_owned).to_vec()];
    for summary in summaries(&store)? {
        let is = |pointer: Option<u64>| pointer.is_some() && summary.iteration == pointer;
        let damage = texts(&summary.damage);
        if place.json {
            let saved_at = unix_seconds(summary.saved_at);
            let (iteration, path, bytes) = (summary.iteration, &summary.path, summary.bytes);
            let (latest, best) = (is(pointers.latest), is(pointers.best));
            line(
                &json!({
                    "iteration": iteration, "path": path, "bytes": bytes, "saved_at_unix_seconds": saved_at,
                    "latest": latest, "best": best, "damage": damage,
                })
                .to_string(),
            );
            continue;
        }
        let age = summary.saved_at.and_then(|time| time.elapsed().ok());
        let marks = [(is(pointers.latest), "latest"), (is(pointers.best), "best"), (!damage.is_empty(), "damaged")];
        let marks: Vec<&str> = marks.into_iter().filter(|(is, _)| *is).map(|(_, mark)| mark).collect();
        rows.push(vec![
            name(&summary),
            bytes(summary.bytes),
            age.map_or_else(|| "-".to_owned(), |age| duration(age.as_secs_f64())),
            marks.join(" "),
            summary.path.display().to_string(),
        ]);
        for damage in &damage {
            complain(&format!("{}: {damage}", summary.path.display()));
        }
    }
    if !place.json {
        table(&rows, &[99, 60, 50, 90, 30]);
    }
    Ok(0)
}

fn inspect(place: &Place) -> Result<u8, Failure> {
    let checkpoint = opened(&place.path)?;
    let metadata = checkpoint.metadata();
    let state = checkpoint.train_state().map_err(failed)?;
    if place.json {
        let tensors: BTreeMap<&String, Value> =
            metadata.tensors.iter().map(|(name, tensor)| (name, tensor_json(tensor))).collect();
        let files = &metadata.files;
        line(
            &json!({
                "path": checkpoint.path(), "iteration": metadata.iteration, "producer": metadata.producer,
                "format_version": metadata.format_version, "saved_at_unix_seconds": metadata.saved_at_unix_seconds,
                "train_state": state, "tensors": tensors, "files": files,
            })
            .to_string(),
        );
        return Ok(0);
    }
    let size: u64 = metadata.files.values().map(|file| file.size).sum();
    line(&format!(
        "{}: iteration {}, {}, by {}",
        checkpoint.path().display(),
        metadata.iteration,
        bytes(size),
        metadata.producer
    ));
    line(&format!(
        "samples    {} trained on, {} skipped, {} validated on",
        number(state.consumed_train_samples as f64),
        number(state.skipped_train_samples as f64),
        number(state.consumed_valid_samples as f64)
    ));
    let kept: Vec<&str> = state.extra.keys().map(String::as_str).collect();
    line(&format!("state of   {}", kept.join(", ")));
    let mut groups: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
    for tensor in metadata.tensors.values() {
        let (count, elements) = groups.entry(&tensor.group).or_default();
        *count += 1;
        *elements += tensor.shape.iter().product::<usize>() as u64;
    }
    for (group, (count, elements)) in groups {
        line(&format!("{group:<10} {count} tensors, {} elements", number(elements as f64)));
    }
    let mut rows = vec![["tensor", "dtype", "shape", "slices"].map(str::to_owned).to_vec()];
    rows.extend(metadata.tensors.iter().map(|(name, tensor)| {
        vec![name.clone(), tensor.dtype.to_string(), format!("{:?}", tensor.shape), tensor.slices.len().to_string()]
    }));
    table(&rows, &[99, 80, 90, 50]);
    let mut rows = vec![["file", "size", "checksum"].map(str::to_owned).to_vec()];
    rows.extend(
        metadata.files.iter().map(|(name, file)| vec![name.clone(), bytes(file.size), file.checksum.to_string()]),
    );
    table(&rows, &[99, 90, 50]);
    Ok(0)
}

/// A tensor without where its slices are.
fn tensor_json(tensor: &TensorRecord) -> Value {
    json!({ "group": tensor.group, "dtype": tensor.dtype.to_string(), "shape": tensor.shape, "slices": tensor.slices.len() })
}

fn verify(place: &Place) -> Result<u8, Failure> {
    let store = store(&place.path)?;
    let mut is_intact = true;
    for summary in summaries(&store)? {
        let damage = match summary.iteration.map(|step| store.open_iteration(step, Verification::Contents)) {
            None => summary.damage.clone(),
            Some(Ok(_)) => Vec::new(),
            Some(Err(CheckpointError::Damaged(damaged))) => damaged.checkpoint.damage,
            Some(Err(error)) => return Err(failed(error)),
        };
        is_intact &= damage.is_empty();
        let (path, damage) = (summary.path.display(), texts(&damage));
        if place.json {
            line(&json!({ "iteration": summary.iteration, "path": summary.path, "intact": damage.is_empty(), "damage": damage }).to_string());
        } else if damage.is_empty() {
            line(&format!("{path}: intact, {}", bytes(summary.bytes)));
        } else {
            line(&format!("{path}: damaged"));
            damage.iter().for_each(|damage| line(&format!("  {damage}")));
        }
    }
    // Warnings of a run that would resume from here; of a single checkpoint all are printed.
    if !place.json && store.path() == place.path {
        let request = LoadRequest { fallback: true, ..LoadRequest::default() };
        match store.resolve(&request) {
            Ok(Resolution::Found(found)) => {
                if !found.report.is_empty() {
                    line(&found.report.to_string());
                }
                line(&format!("a run would go on from iteration {}", found.checkpoint.iteration()));
            }
            Ok(Resolution::NothingFound { .. }) => line("a run would begin: no save was ever completed here"),
            Err(error) => line(&error.to_string()),
        }
    }
    Ok(u8::from(!is_intact))
}

impl Prune {
    fn run(&self) -> Result<u8, Failure> {
        let policy = RetentionPolicy::new(i64::from(self.keep), self.retain_interval).map_err(failed)?;
        let store = store(&self.root)?;
        summaries(&store)?;
        if store.pointers().map_err(failed)?.latest.is_none() {
            let root = self.root.display();
            return Err(Failure::input(format!(
                "{root}: nothing says which checkpoint is the latest, so none is deleted"
            )));
        }
        let deleted = if self.dry_run {
            store.disposable(&policy).map_err(failed)?
        } else {
            // No run may be saving meanwhile.
            let _lock = CheckpointsLock::acquire(store.path())?;
            let options = SaveOptions { retention: policy, ..SaveOptions::default() };
            CheckpointWriter::open(store.path(), options).and_then(|writer| writer.prune()).map_err(failed)?
        };
        let doing = if self.dry_run { "would delete" } else { "deleted" };
        if self.json {
            line(&json!({ "deleted": deleted, "dry_run": self.dry_run }).to_string());
        } else if deleted.is_empty() {
            line("nothing to delete");
        } else {
            let iterations: Vec<String> = deleted.iter().map(u64::to_string).collect();
            line(&format!("{doing} iterations {}", iterations.join(", ")));
        }
        Ok(0)
    }
}
