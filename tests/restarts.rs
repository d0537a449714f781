//! Restarts inside the process: a rank that fails or hangs, and the end of the run.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use bridge_tests::{program, recipe};
use serde_json::Value;

const RUN: [&str; 11] = [
    "--ranks=4",
    "train.train_iters=60",
    "train.global_batch_size=8",
    "train.micro_batch_size=1",
    "train.num_threads=1",
    "checkpoint.save=saved",
    "checkpoint.save_interval=10",
    "validation.eval_iters=0",
    "model.num_layers=1",
    "logger.progress=none",
    "logger.log_interval=1",
];
const RESTARTS: [&str; 2] = ["inprocess_restart.enabled=true", "inprocess_restart.progress_watchdog_interval=0.1"];

fn run(folder: &Path, more: &[&str]) -> Output {
    let run = Command::new(program()).arg("train").arg(recipe()).args(RUN).args(more).current_dir(folder).output();
    run.expect("bridge starts")
}

/// The loss of each iteration that a folder's runs logged last.
fn losses(folder: &Path) -> BTreeMap<u64, u64> {
    let text = std::fs::read_to_string(folder.join("runs/tiny/metrics.jsonl")).unwrap();
    let records = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let losses = records.filter(|of| of["kind"] == "train");
    losses.map(|of| (of["iteration"].as_u64().unwrap(), of["loss"].as_f64().unwrap().to_bits())).collect()
}

fn undisturbed() -> BTreeMap<u64, u64> {
    let folder = tempfile::tempdir().unwrap();
    assert!(run(folder.path(), &[]).status.success());
    losses(folder.path())
}

/// Output of a run with faults.
fn survived(folder: &Path, more: &[&str]) -> String {
    let Output { status, stderr, .. } = run(folder, &[&RESTARTS[..], more].concat());
    let said = String::from_utf8(stderr).unwrap();
    assert!(status.success(), "{more:?}: {said}");
    said
}

#[test]
fn a_rank_that_fails_or_hangs_changes_no_loss() {
    let expected = undisturbed();
    for (kind, more, expected_words) in [
        ("rank_killed", &[][..], "restart 1 in the process, from "),
        (
            "rank_hung",
            &["inprocess_restart.soft_timeout=1", "inprocess_restart.hard_timeout=4"],
            "the process begins anew, from ",
        ),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let kind = format!("ft.simulated_fault_type={kind}");
        let fault = ["ft.simulate_fault=true", kind.as_str(), "ft.simulated_fault_rank=2"];
        let said = survived(folder.path(), &[&fault[..], more].concat());
        assert!(said.contains(expected_words), "{kind}: {said}");
        assert!(said.contains("rank 2") || said.contains("2]"), "the rank is named: {said}");
        assert_eq!(losses(folder.path()), expected, "{kind}");
    }
}

/// The longest time between two records of rank 0, of a run with a fault that is watched for some
/// seconds.
fn longest_pause() -> Duration {
    let folder = tempfile::tempdir().unwrap();
    let fault = ["ft.simulate_fault=true", "ft.simulated_fault_type=rank_killed", "ft.simulated_fault_rank=1"];
    let temporary = ["checkpoint.non_persistent_save_interval=1", "checkpoint.non_persistent_ckpt_type=in_memory"];
    let long = ["train.train_iters=4000", "checkpoint.save_interval=3000", "logger.plot=false"];
    let mut run = Command::new(program())
        .arg("train")
        .arg(recipe())
        .args(RUN)
        .args(RESTARTS.iter().chain(&fault).chain(&temporary).chain(&long))
        .arg("ft.simulated_fault_base_delay=1")
        .current_dir(folder.path())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let metrics = folder.path().join("runs/tiny/metrics.jsonl");
    let started = Instant::now();
    let (mut size, mut grown, mut longest) = (0, started, Duration::ZERO);
    while started.elapsed() < Duration::from_secs(6) {
        let now = std::fs::metadata(&metrics).map_or(0, |metadata| metadata.len());
        if now != size {
            if size > 0 {
                longest = longest.max(grown.elapsed());
            }
            (size, grown) = (now, Instant::now());
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    run.kill().unwrap();
    let output = run.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("restart 1 in the process"), "{said}");
    let name = std::fs::read_to_string(folder.path().join("saved/run_identity.txt")).unwrap();
    std::fs::remove_dir_all(format!("/dev/shm/bridge-{}", name.trim())).unwrap();
    longest
}

/// From the last step before the fault to the first after the restart. Other programs may hold up a
/// try.
#[test]
fn restarts_take_less_than_two_seconds() {
    let pauses: Vec<Duration> = (0..3).map(|_| longest_pause()).collect();
    println!("from the last step before a fault to the next: {pauses:?}");
    assert!(pauses.iter().min() < Some(&Duration::from_secs(2)), "{pauses:?}");
}

#[test]
fn starts_and_faults_are_limited() {
    let fault = ["ft.simulate_fault=true", "ft.simulated_fault_type=rank_killed", "ft.simulated_fault_rank=0"];
    let folder = tempfile::tempdir().unwrap();
    let one = [&RESTARTS[..], &fault, &["inprocess_restart.max_iterations=1"]].concat();
    let output = run(folder.path(), &one);
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("the run is not started again: inprocess_restart.max_iterations"), "{said}");
    // A model that breaks at once does so each time.
    let folder = tempfile::tempdir().unwrap();
    let broken = [
        "optimizer.lr=1000",
        "optimizer.min_lr=1000",
        "optimizer.clip_grad=0.0",
        "scheduler.lr_warmup_iters=null",
        "checkpoint.save_interval=50",
    ];
    let output = run(folder.path(), &[&RESTARTS[..], &broken].concat());
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("3 starts in a row came to no newer save"), "{said}");
}

#[test]
fn a_spare_rank_takes_the_place_of_one_that_failed() {
    let folder = tempfile::tempdir().unwrap();
    let spare = ["--ranks=5", "inprocess_restart.active_world_size=4", "inprocess_restart.granularity=rank"];
    let fault = ["ft.simulate_fault=true", "ft.simulated_fault_type=rank_killed", "ft.simulated_fault_rank=3"];
    let arguments: Vec<&str> = RUN[1..].iter().chain(&RESTARTS).chain(&spare).chain(&fault).copied().collect();
    let output =
        Command::new(program()).arg("train").arg(recipe()).args(arguments).current_dir(folder.path()).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{said}");
    assert!(said.contains("rank 3: spare rank 4 takes the place of 3"), "{said}");
    assert_eq!(losses(folder.path()), undisturbed());
}
