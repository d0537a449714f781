//! Runs of `recipes/tiny.toml` on many ranks: losses, failures, overlap. What the files have in common is here.

mod failures;
mod losses;
mod overlap;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use bridge_core::config::{Kinds, RunConfig, World, load};
use bridge_core::model::ModelRegistry;
use bridge_core::train::{Console, RunOptions};
use bridge_dist::mesh::ProcessGroups;

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
    losses_in(&folder.join("runs/tiny"))
}

/// The same from the folder of its logs.
fn losses_in(log_dir: &Path) -> Vec<f64> {
    let path = log_dir.join("metrics.jsonl");
    let text = std::fs::read_to_string(&path).expect("a run writes metrics");
    let records: Vec<serde_json::Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let of = |kind: &str| -> Vec<f64> {
        records.iter().filter(|r| r["kind"] == kind).map(|r| r["loss"].as_f64().expect("a loss")).collect()
    };
    [of("train"), of("valid"), of("test")].concat()
}

/// The tiny recipe for `ranks` ranks, with logs and checkpoints in `folder`.
fn config(folder: &Path, ranks: usize, overrides: &[&str]) -> RunConfig {
    let log_dir = format!("logger.log_dir={:?}", folder.join("logs"));
    let common = [log_dir.as_str(), "train.num_threads=1", "train.global_batch_size=8", "train.micro_batch_size=1"];
    let overrides: Vec<String> = common.iter().chain(overrides).map(|o| (*o).to_owned()).collect();
    load(&recipe(), &overrides, &Kinds::builtin(), &World { size: ranks }).expect("the recipe is right")
}

/// Options of one rank.
fn options(groups: ProcessGroups) -> RunOptions {
    let mut models = ModelRegistry::default();
    bridge_models::register_builtin(&mut models);
    RunOptions { groups, console: Console::Silent, ..RunOptions::new(models) }
}
