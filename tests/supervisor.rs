//! Runs under `--max-restarts`: faults that cause a restart, faults that do not, and no lost steps.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use bridge_core::logging::health::Supervision;
use bridge_tests::{bridge, losses_of, program, recipe};

const RUN: [&str; 5] = [
    "train.train_iters=60",
    "checkpoint.save=saved",
    "checkpoint.save_interval=10",
    "validation.eval_iters=0",
    "model.num_layers=1",
];

/// Starts a supervised run.
fn start(folder: &Path, more: &[&str]) -> Child {
    Command::new(program())
        .arg("train")
        .arg(recipe())
        .args(["train.global_batch_size=8", "train.micro_batch_size=1", "train.num_threads=1", "logger.progress=none"])
        .args(RUN)
        .args(more)
        .current_dir(folder)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("bridge starts")
}

fn wait_for(what: &str, mut is_there: impl FnMut() -> bool) {
    let started = Instant::now();
    while !is_there() {
        assert!(started.elapsed() < Duration::from_secs(120), "no {what} in two minutes");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The process that a supervisor runs.
fn run_of(supervisor: &Child) -> String {
    let id = supervisor.id();
    let children = format!("/proc/{id}/task/{id}/children");
    let mut run = String::new();
    wait_for("run", || {
        run = std::fs::read_to_string(&children).unwrap_or_default().trim().to_owned();
        !run.is_empty()
    });
    run
}

fn signal(name: &str, process: &str) {
    assert!(Command::new("kill").args([name, process]).status().unwrap().success());
}

/// Lines of a folder's metrics.
fn logged(folder: &Path) -> usize {
    std::fs::read_to_string(folder.join("runs/tiny/metrics.jsonl")).unwrap_or_default().lines().count()
}

/// Exit code and standard error.
fn end(supervisor: Child) -> (Option<i32>, String) {
    let output = supervisor.wait_with_output().unwrap();
    (output.status.code(), String::from_utf8(output.stderr).unwrap())
}

#[test]
fn a_run_that_is_killed_goes_on_as_if_nothing_had_been() {
    let undisturbed = tempfile::tempdir().unwrap();
    assert!(bridge(undisturbed.path(), &RUN).status.success());
    let folder = tempfile::tempdir().unwrap();
    let supervisor = start(folder.path(), &["--max-restarts", "3"]);
    let saved = |step: u64| folder.path().join(format!("saved/iter_{step:07}"));
    for step in [10, 30] {
        wait_for("checkpoint", || saved(step).exists());
        signal("-KILL", &run_of(&supervisor));
        let (killed, before) = (Instant::now(), logged(folder.path()));
        wait_for("step after the restart", || logged(folder.path()) > before);
        let took = killed.elapsed();
        println!("{:.2} s from the fault to the next step", took.as_secs_f64());
        assert!(took < Duration::from_secs(10), "{took:?}");
    }
    let (code, said) = end(supervisor);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("the run was killed by signal 9; restart 1 of 3 in 0.5 s, from iteration "), "{said}");
    assert!(said.contains("restart 2 of 3"), "{said}");
    let supervision = Supervision::read(&folder.path().join("runs/tiny")).expect("others may read of it");
    let restarts: Vec<_> = supervision.restarts.iter().map(|r| (r.number, r.why.as_str())).collect();
    assert_eq!(restarts, [(1, "was killed by signal 9"), (2, "was killed by signal 9")]);
    assert_eq!((supervision.max_restarts, supervision.ranks.len()), (3, 0));
    let last = |folder: &Path| losses_of(folder, "train").last().copied();
    assert_eq!(last(folder.path()), last(undisturbed.path()));
}

/// A process that is stopped as a whole sends no error, but its heartbeats end.
#[test]
fn a_run_that_stands_still_is_ended_and_goes_on() {
    let undisturbed = tempfile::tempdir().unwrap();
    assert!(bridge(undisturbed.path(), &RUN).status.success());
    let folder = tempfile::tempdir().unwrap();
    let saved = folder.path().join("saved");
    std::fs::create_dir(&saved).unwrap();
    let limits = r#"{ "setup": 60, "step": 1.5, "checkpointing": 2.5, "out_of_section": 1.5 }"#;
    std::fs::write(saved.join("ft_state.json"), limits).unwrap();
    let watched = ["ft.enable_ft_package=true", "ft.calc_ft_timeouts=true"];
    let supervisor = start(folder.path(), &[&watched[..], &["--max-restarts", "3"]].concat());
    wait_for("checkpoint", || saved.join("iter_0000010").exists());
    signal("-STOP", &run_of(&supervisor));
    let (code, said) = end(supervisor);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("rank 0 was in section ") && said.contains(" s; the run is ended"), "{said}");
    assert!(said.contains("the run was killed by signal 9; restart 1 of 3"), "{said}");
    let last = |folder: &Path| losses_of(folder, "train").last().copied();
    assert_eq!(last(folder.path()), last(undisturbed.path()));
    let learned = std::fs::read_to_string(saved.join("ft_state.json")).unwrap();
    let learned: serde_json::Value = serde_json::from_str(&learned).unwrap();
    assert_eq!(learned["step"], 10.0, "no limit is below ten seconds");
    let supervision = Supervision::read(&folder.path().join("runs/tiny")).unwrap();
    assert!(supervision.restarts[0].from.starts_with("iteration "), "{supervision:?}");
    let rank = &supervision.ranks[0];
    assert!(rank.rank == 0 && rank.heard <= supervision.written && !rank.section.is_empty(), "{supervision:?}");
}

#[test]
fn a_run_that_is_asked_to_stop_saves_and_is_not_started_again() {
    let folder = tempfile::tempdir().unwrap();
    let supervisor = start(folder.path(), &["train.train_iters=100000", "--max-restarts=3"]);
    wait_for("checkpoint", || folder.path().join("saved/iter_0000010").exists());
    signal("-TERM", &supervisor.id().to_string());
    let (code, said) = end(supervisor);
    assert_eq!(code, Some(143), "{said}");
    assert!(!said.contains("restart"), "{said}");
}

#[test]
fn only_what_another_start_may_mend_is_started_again() {
    let folder = tempfile::tempdir().unwrap();
    let bad = |more: &[&str]| end(start(folder.path(), more));
    let (code, said) = bad(&["train.train_iters=0", "--max-restarts", "3"]);
    assert!(code == Some(2) && !said.contains("restart"), "{said}");
    let (code, said) = bad(&["checkpoint.save=null", "checkpoint.save_interval=null", "--max-restarts", "3"]);
    assert!(code == Some(2) && said.contains("--max-restarts needs checkpoint.save"), "{said}");
    // A model that breaks at once does so each time.
    let broken =
        ["optimizer.lr=1000", "optimizer.min_lr=1000", "optimizer.clip_grad=0.0", "scheduler.lr_warmup_iters=null"];
    let (code, said) = bad(&[&broken[..], &["--max-restarts", "1"]].concat());
    assert_eq!(code, Some(1), "{said}");
    assert_eq!(said.matches("; restart 1 of 1 in ").count(), 1, "{said}");
    assert!(said.contains("all restarts are used (--max-restarts 1)"), "{said}");
}
