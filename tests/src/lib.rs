//! Code that suites share: the binary under test, its runs on `recipes/tiny.toml`, and their logged
//! figures.

mod faulty_disk;
mod program;
mod running;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

pub use faulty_disk::faulty_disk;
pub use program::program;
pub use running::{last_losses, number_of, process_of, said, wait_for};

/// Relative difference of losses that ranks may make in float32.
const TOLERANCE: f64 = 1e-5;

/// The workspace's folder: `BRIDGE_SOURCES`, for suites that run on another machine than the one
/// that built them, else the folder of the build.
///
/// # Panics
/// Never: this package lies in it.
#[must_use]
pub fn root() -> &'static Path {
    static ROOT: OnceLock<PathBuf> = OnceLock::new();
    let built_in = || Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the package lies in the workspace");
    ROOT.get_or_init(|| std::env::var_os("BRIDGE_SOURCES").map_or_else(|| built_in().to_owned(), Into::into))
}

/// The tiny recipe.
#[must_use]
pub fn recipe() -> PathBuf {
    root().join("recipes/tiny.toml")
}

/// Runs `bridge train` on the tiny recipe in `folder`.
///
/// # Panics
/// As [`program`].
pub fn bridge(folder: &Path, arguments: &[&str]) -> Output {
    bridge_on(&recipe(), folder, arguments)
}

/// Runs `bridge train` on a recipe in `folder`.
///
/// # Panics
/// As [`program`].
pub fn bridge_on(recipe: &Path, folder: &Path, arguments: &[&str]) -> Output {
    Command::new(program())
        .arg("train")
        .arg(recipe)
        .args(["train.global_batch_size=8", "train.micro_batch_size=1", "train.num_threads=1", "logger.progress=none"])
        // Shuffled together, so that validation reads the same samples on any number of ranks.
        // Without validation the setting would have no effect.
        .args((!arguments.contains(&"validation.eval_iters=0")).then_some("dataset.data_sharding=false"))
        .args(arguments)
        .current_dir(folder)
        .output()
        .expect("bridge starts")
}

/// Losses of one kind (`train`, `valid` or `test`) that a folder's runs logged.
///
/// # Panics
/// As [`figures_in`].
pub fn losses_of(folder: &Path, kind: &str) -> Vec<f64> {
    records_in(&folder.join("runs/tiny"), kind)
}

/// Losses of one kind from the folder of a run's logs.
///
/// # Panics
/// As [`figures_in`].
pub fn records_in(log_dir: &Path, kind: &str) -> Vec<f64> {
    figures_in(log_dir, kind, "loss")
}

/// A figure of the records of one kind from the folder of a run's logs.
///
/// # Panics
/// The run wrote no records, or some without the figure.
pub fn figures_in(log_dir: &Path, kind: &str, figure: &str) -> Vec<f64> {
    let path = log_dir.join("metrics.jsonl");
    let text = std::fs::read_to_string(&path).expect("a run writes metrics");
    let records = text.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    records.filter(|record| record["kind"] == kind).map(|record| record[figure].as_f64().expect("a number")).collect()
}

/// Losses that a folder's runs logged: those of the training steps, then those of the evaluations.
///
/// # Panics
/// As [`figures_in`].
pub fn losses(folder: &Path) -> Vec<f64> {
    losses_in(&folder.join("runs/tiny"))
}

/// Losses from the folder of a run's logs.
///
/// # Panics
/// As [`figures_in`].
pub fn losses_in(log_dir: &Path) -> Vec<f64> {
    ["train", "valid", "test"].map(|kind| records_in(log_dir, kind)).concat()
}

/// Runs in `folder`.
///
/// # Panics
/// It does not succeed.
pub fn run_in(folder: &Path, arguments: &[&str]) {
    let output = bridge(folder, arguments);
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// The losses of a run in a folder of its own.
///
/// # Panics
/// It does not succeed.
pub fn run(arguments: &[&str]) -> Vec<f64> {
    let folder = tempfile::tempdir().unwrap();
    run_in(folder.path(), arguments);
    losses(folder.path())
}

/// # Panics
/// If `found` differs from `expected` by more than a changed order of sums causes.
pub fn assert_close(found: &[f64], expected: &[f64], what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (step, (a, b)) in found.iter().zip(expected).enumerate() {
        assert!((a - b).abs() <= TOLERANCE * b.abs(), "{what}, loss {step}: {a}, expected {b}");
    }
}

/// Copies a folder with all that is in it.
///
/// # Panics
/// Files cannot be read or written.
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
