//! Details of one run besides its figures: checkpoints, its log's lines about ranks, the flight
//! recorder's files, traces. Only files inside the folder of runs are read, even if a run's files
//! name other paths.

use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use bridge_checkpoint::CheckpointStore;
use bridge_data::untrusted_io;
use bridge_telemetry::logging::LogEvent;
use bridge_telemetry::logging::flight::{FlightRecord, missing};
use bridge_telemetry::logging::health::{RankScores, Supervision};
use bridge_telemetry::logging::trace::{FOLDER, Part, Trace, summarize};
use serde_json::{Value, json};

use crate::index::Table;
use crate::library::Entry;
use crate::request::Answer;

/// Bytes at the end of a log that are looked through.
const LOG: u64 = 1 << 20;
/// Warnings and errors that are shown.
const EVENTS: usize = 40;
/// Larger traces are not sent or summed up here.
const TRACE: u64 = 512 << 20;
/// Ranks whose flight records are read.
const RANKS: u64 = 4096;
/// All that is shown of a run.
pub fn details(root: &Path, entry: &Entry) -> Value {
    let head = entry.read(|known| known.head.clone());
    let config: Option<toml::Table> = head.config.as_deref().and_then(|config| config.parse().ok());
    let setting = |section: &str, key: &str| -> Option<PathBuf> {
        Some(config.as_ref()?.get(section)?.get(key)?.as_str()?.into())
    };
    json!({
        "id": entry.id,
        "head": head,
        "config": head.config,
        "checkpoints": checkpoints(root, &entry.folder, setting("checkpoint", "save")),
        "health": {
            "events": events(&entry.folder),
            "steps": entry.read(|known| steps(known.table())),
            "supervision": Supervision::read(&entry.folder),
            "scores": RankScores::read(&entry.folder),
            "flight": setting("dist", "flight_recorder_dump_path")
                .and_then(|path| flight(root, &entry.folder, &path, head.world_size.unwrap_or(1))),
        },
        "traces": traces(&entry.folder).iter().map(|(name, path)| {
            json!({ "name": name, "bytes": std::fs::metadata(path).map_or(0, |file| file.len()) })
        }).collect::<Vec<_>>(),
    })
}

/// Place of a recipe's path inside the folder of runs, if it is there. The path is relative to the
/// folder in which the run was started: a parent of its logs.
fn inside(root: &Path, folder: &Path, path: &Path) -> Option<PathBuf> {
    let candidates = folder.ancestors().map(|above| above.join(path));
    let found = candidates.filter_map(|path| path.canonicalize().ok()).find(|path| path.starts_with(root));
    found.filter(|path| path.starts_with(root))
}

fn checkpoints(root: &Path, folder: &Path, named: Option<PathBuf>) -> Value {
    let usual = folder.join("checkpoints");
    let place = named.as_deref().and_then(|path| inside(root, folder, path));
    let place = place.or_else(|| inside(root, folder, &usual));
    let Some(place) = place else {
        let note = named.map(|path| format!("they are in {}, outside this folder of runs, or deleted", path.display()));
        return json!({ "list": [], "note": note });
    };
    let listed = CheckpointStore::open(&place).and_then(|store| Ok((store.list()?, store.pointers()?)));
    let (list, pointers) = match listed {
        Ok(listed) => listed,
        Err(error) => return json!({ "list": [], "note": error.to_string() }),
    };
    let rows = list.iter().rev().map(|summary| {
        let saved = summary.saved_at.and_then(|time| Some(time.duration_since(UNIX_EPOCH).ok()?.as_secs()));
        let is = |pointer: Option<u64>| pointer.is_some() && summary.iteration == pointer;
        let damage: Vec<String> = summary.damage.iter().map(ToString::to_string).collect();
        let name = summary.path.file_name().map(|name| name.to_string_lossy().into_owned());
        json!({
            "iteration": summary.iteration, "name": name, "bytes": summary.bytes, "saved": saved,
            "latest": is(pointers.latest), "best": is(pointers.best), "damage": damage,
        })
    });
    let shown = place.strip_prefix(root).unwrap_or(&place).display().to_string();
    json!({ "list": rows.collect::<Vec<_>>(), "place": shown })
}

/// The last warnings and errors of a run: those of rank 0 from the log, those of other ranks from
/// their own logs.
fn events(folder: &Path) -> Vec<Value> {
    let of = |path: &Path, rank: u64| -> Vec<Value> {
        let shown = |line: &String| {
            let LogEvent { time, level, text } = LogEvent::read(line)?;
            Some(json!({ "rank": rank, "time": time, "level": level.to_string(), "text": text }))
        };
        last_lines(path).unwrap_or_default().iter().filter_map(shown).collect()
    };
    let mut all: Vec<Value> =
        rank_logs(folder).into_iter().take(RANKS as usize).flat_map(|(rank, path)| of(&path, rank)).collect();
    all.extend(of(&folder.join("train.log"), 0));
    all.drain(..all.len().saturating_sub(EVENTS));
    all
}

/// The logs of ranks other than 0: regular files of the run's own folder.
fn rank_logs(folder: &Path) -> Vec<(u64, PathBuf)> {
    let folder = folder.join("ranks");
    let is_folder = std::fs::symlink_metadata(&folder).is_ok_and(|folder| folder.is_dir());
    let entries = if is_folder { std::fs::read_dir(&folder).ok() } else { None };
    let named = |entry: std::fs::DirEntry| {
        let rank = entry.file_name().to_str()?.strip_prefix("rank_")?.strip_suffix(".log")?.parse().ok()?;
        entry.file_type().ok()?.is_file().then(|| (rank, entry.path()))
    };
    let mut found: Vec<(u64, PathBuf)> = entries.into_iter().flatten().flatten().filter_map(named).collect();
    found.sort();
    found
}

/// The whole lines at the end of a log.
fn last_lines(path: &Path) -> std::io::Result<Vec<String>> {
    let (mut file, size) = untrusted_io::open(path)?;
    let start = size.saturating_sub(LOG);
    file.seek(SeekFrom::Start(start))?;
    let mut bytes = Vec::new();
    file.take(LOG).read_to_end(&mut bytes)?;
    let text = String::from_utf8_lossy(&bytes);
    Ok(text.lines().skip(usize::from(start > 0)).map(str::to_owned).collect())
}

/// Steps that updated nothing, and steps whose loss is not finite.
fn steps(table: &Table) -> Value {
    let count = |name: &str, is_counted: fn(f64) -> bool| {
        let series = table.series("train", name);
        series.map_or(0, |series| series.points().filter(|(_, value)| is_counted(*value)).count())
    };
    json!({ "skipped": count("skipped", |value| value > 0.0), "not_finite": count("loss", |value| !value.is_finite()) })
}

/// Summary of the flight recorder's files, which each rank has under the path with its number.
fn flight(root: &Path, folder: &Path, path: &Path, world_size: u64) -> Option<Value> {
    let place = inside(root, folder, path.parent()?)?;
    let stem = path.file_name()?.to_string_lossy().into_owned();
    let file = |rank: u64| place.join(format!("{stem}{rank}"));
    let is_own = |path: &PathBuf| std::fs::symlink_metadata(path).is_ok_and(|file| file.is_file());
    let files = (0..world_size.min(RANKS)).map(file).filter(is_own);
    let records: Vec<FlightRecord> = files.filter_map(|path| FlightRecord::read(&path).ok()).collect();
    let of = |record: &FlightRecord| json!({ "rank": record.rank, "node": record.node, "why": record.why, "in": record.last_open() });
    let ranks: Vec<Value> = records.iter().map(of).collect();
    (!ranks.is_empty()).then(|| json!({ "ranks": ranks, "missing": missing(&records) }))
}

/// The traces of a run's ranks: regular files of its own folder.
fn traces(folder: &Path) -> Vec<(String, PathBuf)> {
    let folder = folder.join(FOLDER);
    let is_folder = std::fs::symlink_metadata(&folder).is_ok_and(|folder| folder.is_dir());
    let entries = if is_folder { std::fs::read_dir(&folder).ok() } else { None };
    let named = |entry: std::fs::DirEntry| {
        let name = entry.file_name().into_string().ok()?;
        let is_rank = name.strip_prefix("rank_")?.strip_suffix(".json")?.bytes().all(|byte| byte.is_ascii_digit());
        (is_rank && entry.file_type().ok()?.is_file()).then(|| (name, entry.path()))
    };
    let mut found: Vec<(String, PathBuf)> = entries.into_iter().flatten().flatten().filter_map(named).collect();
    found.sort();
    found
}

/// The trace of that name, for Perfetto.
pub fn trace(entry: &Entry, name: &str) -> Answer {
    let Some((name, path)) = traces(&entry.folder).into_iter().find(|(of, _)| of == name) else {
        return Answer::refused(404, "file: there is no such trace");
    };
    match untrusted_io::read(&path, TRACE) {
        Ok(bytes) => Answer { tag: None, download: Some(name), ..Answer::content("application/json", bytes) },
        Err(error) => Answer::refused(500, &format!("{name}: {error}")),
    }
}

/// Breakdown of the time of each rank's traced steps.
pub fn times(entry: &Entry) -> Answer {
    let files = traces(&entry.folder);
    let size: u64 = files.iter().filter_map(|(_, path)| Some(std::fs::metadata(path).ok()?.len())).sum();
    if size > TRACE {
        return Answer::refused(500, "the traces are too large for this page: see `bridge trace`");
    }
    let traces = files.iter().map(|(_, path)| Trace::read(path).map_err(|error| error.to_string()));
    let merged = traces.collect::<Result<Vec<_>, _>>().and_then(Trace::merge);
    let ranks = match merged {
        Ok(trace) => summarize(&trace),
        Err(error) => return Answer::refused(500, &error),
    };
    let rows = ranks.iter().map(|rank| {
        let shares = Part::OF_STEPS.iter().map(|part| (part, rank.part(*part))).filter(|(_, seconds)| *seconds > 0.0);
        let shares: Vec<Value> = shares.map(|(part, seconds)| json!({ "part": part, "seconds": seconds })).collect();
        json!({ "rank": rank.rank.rank, "steps": rank.steps.len(), "seconds": rank.seconds(), "parts": shares })
    });
    Answer::json(&json!(rows.collect::<Vec<_>>()))
}
