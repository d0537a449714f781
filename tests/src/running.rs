//! Observation of a running run: its output, its progress, and the processes of its ranks.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::Value;

/// Output so far of a run in `folder`, whose standard error goes to `stderr.txt`.
#[must_use]
pub fn said(folder: &Path) -> String {
    std::fs::read_to_string(folder.join("stderr.txt")).unwrap_or_default()
}

/// Waits until `is_there`.
///
/// # Panics
/// If that takes longer than `patience`.
pub fn wait_for(what: &str, folder: &Path, patience: Duration, mut is_there: impl FnMut() -> bool) {
    let started = Instant::now();
    while !is_there() {
        assert!(started.elapsed() < patience, "no {what} in time: {}", said(folder));
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The loss of each iteration of the tiny recipe that the runs in `folder` logged last.
#[must_use]
pub fn last_losses(folder: &Path) -> BTreeMap<u64, f64> {
    let text = std::fs::read_to_string(folder.join("runs/tiny/metrics.jsonl")).unwrap_or_default();
    let records = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let losses = records.filter(|of| of["kind"] == "train");
    losses.filter_map(|of| Some((of["iteration"].as_u64()?, of["loss"].as_f64()?))).collect()
}

/// The folder in `/proc` of the process that is `rank` under mpirun, in `folder`.
///
/// # Panics
/// If there is no such process.
#[must_use]
pub fn process_of(folder: &Path, rank: usize) -> PathBuf {
    let folder = folder.canonicalize().expect("the run's folder is there");
    let wanted = format!("OMPI_COMM_WORLD_RANK={rank}");
    let is_wanted = |process: &Path| {
        let environment = std::fs::read(process.join("environ")).unwrap_or_default();
        let is_rank = environment.split(|byte| *byte == 0).any(|entry| entry == wanted.as_bytes());
        is_rank && std::fs::read_link(process.join("cwd")).is_ok_and(|cwd| cwd == folder)
    };
    let processes = std::fs::read_dir("/proc").expect("processes can be listed").flatten();
    processes.map(|entry| entry.path()).find(|process| is_wanted(process)).expect("the rank runs")
}

/// The number of a process that [`process_of`] found.
///
/// # Panics
/// If the path is not such a folder.
#[must_use]
pub fn number_of(process: &Path) -> String {
    process.file_name().and_then(|name| name.to_str()).expect("it is in /proc").to_owned()
}
