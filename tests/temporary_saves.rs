//! Saves between the persistent ones: a killed run resumes from the newest that is complete, and
//! only from such a one.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use bridge_tests::{bridge, copy, program, recipe};
use serde_json::Value;

const RUN: [&str; 9] = [
    "--ranks=4",
    "train.train_iters=24",
    "train.global_batch_size=8",
    "train.micro_batch_size=1",
    "train.num_threads=1",
    "checkpoint.save=saved",
    "checkpoint.save_interval=100",
    "validation.eval_iters=0",
    "model.num_layers=1",
];
const LOCAL: [&str; 3] = [
    "checkpoint.non_persistent_save_interval=3",
    "checkpoint.non_persistent_ckpt_type=local",
    "checkpoint.non_persistent_local_ckpt_dir=local",
];
const COPIES: [&str; 2] = ["checkpoint.replication=true", "checkpoint.replication_jump=1"];

fn start(folder: &Path, more: &[&str]) -> Child {
    Command::new(program())
        .arg("train")
        .arg(recipe())
        .args(RUN)
        .args(more)
        .current_dir(folder)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("bridge starts")
}

/// Kills a run once `is_there` says that it has come far enough.
fn kill_when(mut run: Child, mut is_there: impl FnMut() -> bool) {
    let started = Instant::now();
    while !is_there() {
        assert!(started.elapsed() < Duration::from_secs(120), "no save in two minutes");
        assert!(run.try_wait().unwrap().is_none(), "the run is still there");
        std::thread::sleep(Duration::from_millis(2));
    }
    run.kill().unwrap();
    run.wait().unwrap();
}

/// The folder of one name that `parent` has.
fn only_folder(parent: &Path) -> Option<PathBuf> {
    std::fs::read_dir(parent).ok()?.flatten().map(|entry| entry.path()).find(|path| path.is_dir())
}

/// A checkpoint, or a piece of one, that is complete.
fn piece_in(parent: &Path) -> Option<PathBuf> {
    let named = |path: &PathBuf| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("iter_"));
    std::fs::read_dir(parent).ok()?.flatten().map(|entry| entry.path()).find(named)
}

/// The loss of each iteration that a folder's runs logged last.
fn losses(folder: &Path) -> BTreeMap<u64, u64> {
    let text = std::fs::read_to_string(folder.join("runs/tiny/metrics.jsonl")).unwrap();
    let records = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let losses = records.filter(|of| of["kind"] == "train");
    losses.map(|of| (of["iteration"].as_u64().unwrap(), of["loss"].as_f64().unwrap().to_bits())).collect()
}

/// A run in `folder` that is killed once all ranks have a piece of some iteration; returns the
/// folder of the pieces.
fn killed_with_pieces(folder: &Path, more: &[&str]) -> PathBuf {
    let has_pieces = |place: &Path| (0..4).all(|rank| piece_in(&place.join(format!("rank-{rank:05}"))).is_some());
    let place = || only_folder(&folder.join("local"));
    kill_when(start(folder, more), || place().is_some_and(|place| has_pieces(&place)));
    place().unwrap()
}

fn resumed(folder: &Path, more: &[&str]) -> String {
    let Output { status, stdout, stderr } = bridge(folder, &[&RUN[..], more].concat());
    let text = format!("{}{}", String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
    assert!(status.success(), "{text}");
    text
}

fn undisturbed() -> BTreeMap<u64, u64> {
    let folder = tempfile::tempdir().unwrap();
    resumed(folder.path(), &[]);
    losses(folder.path())
}

#[test]
fn what_one_machine_lost_comes_from_its_peers() {
    let expected = undisturbed();
    let folder = tempfile::tempdir().unwrap();
    let more = [&LOCAL[..], &COPIES].concat();
    let place = killed_with_pieces(folder.path(), &more);
    let state = tempfile::tempdir().unwrap();
    copy(folder.path(), state.path());
    // One rank's folder is gone, and a peer of another's has a flipped bit in its own shards.
    std::fs::remove_dir_all(place.join("rank-00001")).unwrap();
    let piece = piece_in(&place.join("rank-00003")).unwrap();
    for shard in std::fs::read_dir(&piece).unwrap().flatten().map(|entry| entry.path()) {
        if shard.to_string_lossy().ends_with("rank00003.safetensors") {
            let mut bytes = std::fs::read(&shard).unwrap();
            let middle = bytes.len() / 2;
            bytes[middle] ^= 1;
            std::fs::write(&shard, bytes).unwrap();
        }
    }
    let said = resumed(folder.path(), &more);
    assert!(said.contains("a temporary save"), "{said}");
    assert_eq!(losses(folder.path()), expected);
    assert!(only_folder(&folder.path().join("local")).is_none(), "a run that has saved all deletes them");

    // With nothing lost the same, at another layout too.
    let said = resumed(state.path(), &LOCAL);
    assert!(said.contains("a temporary save"), "{said}");
    assert_eq!(losses(state.path()), expected);
}

#[test]
fn what_is_not_whole_is_not_taken() {
    let folder = tempfile::tempdir().unwrap();
    let place = killed_with_pieces(folder.path(), &LOCAL);
    // The rank that has the model's only copy.
    std::fs::remove_dir_all(place.join("rank-00000")).unwrap();
    let said = resumed(folder.path(), &LOCAL);
    assert!(!said.contains("resuming"), "{said}");
    assert_eq!(losses(folder.path()), undisturbed());
}

#[test]
fn memory_and_a_shared_folder_serve_as_well() {
    let expected = undisturbed();
    for kind in ["in_memory", "global"] {
        let folder = tempfile::tempdir().unwrap();
        let kind = format!("checkpoint.non_persistent_ckpt_type={kind}");
        let more = ["checkpoint.non_persistent_save_interval=3", kind.as_str()];
        let saved = folder.path().join("saved");
        let name = || std::fs::read_to_string(saved.join("run_identity.txt")).unwrap_or_default();
        let memory = || PathBuf::from(format!("/dev/shm/bridge-{}", name().trim()));
        let in_memory = || (0..4).all(|rank| piece_in(&memory().join(format!("rank-{rank:05}"))).is_some());
        let shared = || saved.join("non_persistent/latest_checkpointed_iteration.txt").exists();
        kill_when(start(folder.path(), &more), || if kind.ends_with("global") { shared() } else { in_memory() });
        let said = resumed(folder.path(), &more);
        assert!(said.contains("a temporary save"), "{kind}: {said}");
        assert_eq!(losses(folder.path()), expected, "{kind}");
        assert!(!memory().exists(), "memory is free again");
    }
}

#[test]
fn saves_of_another_past_are_not_taken() {
    let folder = tempfile::tempdir().unwrap();
    let short = [&LOCAL[..], &["checkpoint.save_interval=2"]].concat();
    killed_with_pieces(folder.path(), &short);
    // Beginning anew in the same folders.
    std::fs::remove_dir_all(folder.path().join("saved")).unwrap();
    let said = resumed(folder.path(), &LOCAL);
    assert!(!said.contains("resuming"), "{said}");
}

#[test]
fn a_run_whose_end_is_only_in_a_temporary_save_saves_it() {
    let folder = tempfile::tempdir().unwrap();
    let place = killed_with_pieces(folder.path(), &LOCAL);
    let piece = piece_in(&place.join("rank-00000")).unwrap();
    let last = piece.file_name().unwrap().to_string_lossy().trim_start_matches("iter_").parse::<usize>().unwrap();
    // As if the checkpoint at the end of a shorter run had failed.
    let length = format!("train.train_iters={last}");
    let shorter = [&LOCAL[..], &[length.as_str(), "scheduler.override_opt_param_scheduler=true"]].concat();
    let said = resumed(folder.path(), &shorter);
    assert!(said.contains("a temporary save") && said.contains("nothing left to train"), "{said}");
    let saved = piece_in(&folder.path().join("saved")).unwrap();
    assert_eq!(saved.file_name(), piece.file_name(), "{said}");
    assert!(only_folder(&folder.path().join("local")).is_none(), "what is saved for good is not kept twice");
    let again = resumed(folder.path(), &shorter);
    assert!(again.contains(&format!("resuming from saved/{}", saved.file_name().unwrap().display())), "{again}");
    assert!(!again.contains("saved saved/"), "nothing is saved twice: {again}");
}

#[test]
fn the_last_step_is_saved_once() {
    let folder = tempfile::tempdir().unwrap();
    let said = resumed(folder.path(), &LOCAL);
    assert!(said.contains("temporary save of iteration 21 "), "{said}");
    assert!(!said.contains("temporary save of iteration 24 "), "{said}");
    assert!(said.contains("saved saved/iter_0000024 "), "{said}");
}
