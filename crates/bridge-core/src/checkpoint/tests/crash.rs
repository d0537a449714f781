//! A process that saves without pause is killed at random moments; what it leaves is always whole.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use super::*;

const ROOT_VARIABLE: &str = "BRIDGE_CHECKPOINT_CRASH_ROOT";
const READY: &str = "checkpoint child is saving";
const KILLS: usize = 40;

/// Continues from the latest checkpoint of `root`, as a training run would, and saves `rounds` times: each iteration
/// twice, the second time over the first.
fn save_repeatedly(root: &Path, rounds: usize) {
    let retention = RetentionPolicy::new(2, None).unwrap();
    let options = SaveOptions {
        retention,
        max_shard_bytes: 4096,
        ..SaveOptions::default()
    };
    let writer = CheckpointWriter::open(root, options).unwrap();
    let first = match resolve(root, OnDamaged::Error).unwrap() {
        Resolution::Found(found) => found.checkpoint.iteration() + 1,
        Resolution::NothingFound { .. } => 0,
    };
    println!("\n{READY}");
    for step in (first..).take(rounds) {
        writer.save(&snapshot_of(step, 0.5)).unwrap();
        writer.save(&snapshot_of(step, 0.75)).unwrap();
    }
}

#[test]
#[ignore = "the process that a_kill_at_any_moment_leaves_a_whole_checkpoint kills"]
fn saves_until_killed() {
    match std::env::var_os(ROOT_VARIABLE) {
        Some(root) => save_repeatedly(Path::new(&root), usize::MAX),
        // Run by hand, it shows that the process does what it is killed for.
        None => {
            let dir = tempfile::tempdir().unwrap();
            save_repeatedly(dir.path(), 3);
            assert_eq!(
                found(resolve(dir.path(), OnDamaged::Error).unwrap())
                    .checkpoint
                    .iteration(),
                2
            );
        }
    }
}

fn start(root: &Path) -> Child {
    let (_, module) = module_path!().split_once("::").unwrap();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args([
            &format!("{module}::saves_until_killed"),
            "--exact",
            "--ignored",
            "--nocapture",
            "--test-threads=1",
        ])
        .env(ROOT_VARIABLE, root)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let ready = lines.map_while(Result::ok).any(|line| line == READY);
    if !ready {
        let _ = child.kill();
        panic!("the child never began to save: {:?}", child.wait());
    }
    child
}

#[test]
fn a_kill_at_any_moment_leaves_a_whole_checkpoint() {
    let dir = tempfile::tempdir().unwrap();
    let mut random = Random(4);
    let mut last = None;
    let mut cut_short = 0;
    for kill in 0..KILLS {
        let mut child = start(dir.path());
        std::thread::sleep(Duration::from_micros(random.next() % 40_000));
        child.kill().unwrap();
        assert!(
            child.wait().unwrap().code().is_none(),
            "it was killed, not ended"
        );
        cut_short += usize::from(
            names_in(dir.path())
                .iter()
                .any(|name| name.starts_with('.')),
        );
        match resolve(dir.path(), OnDamaged::Error).unwrap() {
            Resolution::Found(found) => {
                assert!(
                    found.report.skipped.is_empty(),
                    "kill {kill}: {}",
                    found.report
                );
                assert!(
                    [0.5, 0.75].contains(&assert_whole(&found.checkpoint)),
                    "kill {kill}"
                );
                let step = Some(found.checkpoint.iteration());
                assert!(
                    step >= last,
                    "kill {kill}: went back from {last:?} to {step:?}"
                );
                last = step;
            }
            Resolution::NothingFound { .. } => assert_eq!(last, None, "kill {kill}: a fresh start"),
        }
    }
    assert!(last.is_some(), "not one save was completed in {KILLS} runs");
    assert!(cut_short > 0, "not one of {KILLS} kills fell into a save");
}
