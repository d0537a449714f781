//! Runs of `recipes/tiny.toml` on many ranks against the run on one: the same losses, whatever carries the gradients.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Relative difference of losses that ranks may make in float32.
const TOLERANCE: f64 = 1e-5;

fn recipe() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../recipes/tiny.toml")
}

/// Runs `bridge train` on the tiny recipe in `folder`.
fn bridge(folder: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_bridge"))
        .arg("train")
        .arg(recipe())
        .args(["train.global_batch_size=8", "train.micro_batch_size=1", "train.num_threads=1", "logger.progress=none"])
        // Shuffled together, so that validation reads the same samples whatever the number of ranks.
        .args(["dataset.data_sharding=false"])
        .args(arguments)
        .current_dir(folder)
        .output()
        .expect("bridge starts")
}

/// Losses of a finished run: those of the training steps, then those of the evaluations.
fn losses(folder: &Path) -> Vec<f64> {
    let path = folder.join("runs/tiny/metrics.jsonl");
    let text = std::fs::read_to_string(&path).expect("a run writes metrics");
    let records: Vec<serde_json::Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let of = |kind: &str| -> Vec<f64> {
        records.iter().filter(|r| r["kind"] == kind).map(|r| r["loss"].as_f64().expect("a loss")).collect()
    };
    [of("train"), of("valid"), of("test")].concat()
}

fn run(arguments: &[&str]) -> Vec<f64> {
    let folder = tempfile::tempdir().unwrap();
    let output = bridge(folder.path(), arguments);
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    losses(folder.path())
}

fn assert_close(found: &[f64], expected: &[f64], what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (step, (a, b)) in found.iter().zip(expected).enumerate() {
        assert!((a - b).abs() <= TOLERANCE * b.abs(), "{what}, loss {step}: {a} and on one rank {b}");
    }
}

#[test]
fn data_parallel_ranks_train_like_one() {
    let single = run(&[]);
    assert_eq!(single.len(), 20 + 3 + 1);
    assert_close(&run(&["--ranks", "2"]), &single, "2 ranks");
    assert_close(&run(&["--ranks", "4"]), &single, "4 ranks");
    let averaged = run(&["--ranks", "2", "ddp.average_in_collective=true"]);
    assert_close(&averaged, &single, "averaged in the collective");
}
