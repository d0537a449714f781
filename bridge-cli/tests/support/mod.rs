//! Runs of `recipes/tiny.toml` through the `bridge` binary, for tests that compare layouts of ranks.
#![allow(dead_code, reason = "each test binary uses a part of it")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Relative difference of losses that ranks may make in float32.
const TOLERANCE: f64 = 1e-5;

/// The tiny recipe.
pub fn recipe() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../recipes/tiny.toml")
}

/// Runs `bridge train` on the tiny recipe in `folder`.
pub fn bridge(folder: &Path, arguments: &[&str]) -> Output {
    bridge_on(&recipe(), folder, arguments)
}

/// Runs `bridge train` on a recipe in `folder`.
pub fn bridge_on(recipe: &Path, folder: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_bridge"))
        .arg("train")
        .arg(recipe)
        .args(["train.global_batch_size=8", "train.micro_batch_size=1", "train.num_threads=1", "logger.progress=none"])
        // Shuffled together, so that validation reads the same samples whatever the number of ranks. Without one it would have no effect.
        .args((!arguments.contains(&"validation.eval_iters=0")).then_some("dataset.data_sharding=false"))
        .args(arguments)
        .current_dir(folder)
        .output()
        .expect("bridge starts")
}

/// Losses of one kind (`train`, `valid` or `test`) that a folder's runs logged.
pub fn losses_of(folder: &Path, kind: &str) -> Vec<f64> {
    records_in(&folder.join("runs/tiny"), kind)
}

/// Losses of one kind from the folder of a run's logs.
pub fn records_in(log_dir: &Path, kind: &str) -> Vec<f64> {
    figures_in(log_dir, kind, "loss")
}

/// A figure of the records of one kind from the folder of a run's logs.
pub fn figures_in(log_dir: &Path, kind: &str, figure: &str) -> Vec<f64> {
    let path = log_dir.join("metrics.jsonl");
    let text = std::fs::read_to_string(&path).expect("a run writes metrics");
    let records = text.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    records.filter(|record| record["kind"] == kind).map(|record| record[figure].as_f64().expect("a number")).collect()
}

/// Losses that a folder's runs logged: those of the training steps, then those of the evaluations.
pub fn losses(folder: &Path) -> Vec<f64> {
    losses_in(&folder.join("runs/tiny"))
}

/// The same from the folder of their logs.
pub fn losses_in(log_dir: &Path) -> Vec<f64> {
    ["train", "valid", "test"].map(|kind| records_in(log_dir, kind)).concat()
}

/// Runs in `folder` and fails unless that succeeds.
pub fn run_in(folder: &Path, arguments: &[&str]) {
    let output = bridge(folder, arguments);
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// The losses of a run in a folder of its own.
pub fn run(arguments: &[&str]) -> Vec<f64> {
    let folder = tempfile::tempdir().unwrap();
    run_in(folder.path(), arguments);
    losses(folder.path())
}

pub fn assert_close(found: &[f64], expected: &[f64], what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (step, (a, b)) in found.iter().zip(expected).enumerate() {
        assert!((a - b).abs() <= TOLERANCE * b.abs(), "{what}, loss {step}: {a}, expected {b}");
    }
}

/// Copies a folder with all that is in it.
pub fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}
