//! A process that saves without pause is killed at random moments; its published checkpoints are
//! always intact.

use std::io::{BufRead, BufReader, Lines};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use super::*;

const ROOT_VARIABLE: &str = "BRIDGE_CHECKPOINT_CRASH_ROOT";
const READY: &str = "checkpoint child is saving";
const SAVED: &str = "checkpoint child has saved";
const KILLS: usize = 32;

/// Continues from the latest checkpoint of `root`, as a training run would, and saves `rounds`
/// times: each iteration twice, the second time over the first.
fn save_repeatedly(root: &Path, rounds: usize) {
    let retention = RetentionPolicy::new(2, None).unwrap();
    let options = SaveOptions { retention, max_shard_bytes: 4096, ..SaveOptions::default() };
    let writer = CheckpointWriter::open(root, options).unwrap();
    let first = match resolve(root).unwrap() {
        Resolution::Found(found) => found.checkpoint.iteration() + 1,
        Resolution::NothingFound { .. } => 0,
    };
    println!("\n{READY}");
    for step in (first..).take(rounds) {
        for flavour in [0.5, 0.75] {
            writer.save(&snapshot_of(step, flavour)).unwrap();
            println!("{SAVED}");
        }
    }
}

#[test]
#[ignore = "the process that a_kill_at_any_moment_leaves_a_whole_checkpoint kills"]
fn saves_until_killed() {
    match std::env::var_os(ROOT_VARIABLE) {
        Some(root) => save_repeatedly(Path::new(&root), usize::MAX),
        // Run by hand, without the variable, it checks that the process saves checkpoints.
        None => {
            let dir = tempfile::tempdir().unwrap();
            save_repeatedly(dir.path(), 3);
            let newest = found(resolve(dir.path()).unwrap()).checkpoint;
            assert_eq!(newest.iteration(), 2);
        }
    }
}

/// The process that saves, and the lines that it prints.
struct Saver {
    process: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Saver {
    fn start(root: &Path) -> Self {
        let (_, module) = module_path!().split_once("::").unwrap();
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", &format!("{module}::saves_until_killed")])
            .args(["--ignored", "--nocapture", "--test-threads=1"])
            .env(ROOT_VARIABLE, root)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let mut saver = Self { process, lines };
        saver.wait_for(READY);
        saver
    }

    fn wait_for(&mut self, expected: &str) {
        let said = self.lines.by_ref().map_while(Result::ok).any(|line| line == expected);
        assert!(said, "the child ended by itself: {:?}", self.process.wait());
    }

    fn kill(mut self) {
        self.process.kill().unwrap();
        let status = self.process.wait().unwrap();
        assert!(status.code().is_none(), "it was killed, not ended");
    }
}

#[test]
fn a_kill_at_any_moment_leaves_a_whole_checkpoint() {
    let dir = tempfile::tempdir().unwrap();
    let mut random = Random(4);
    let mut last = None;
    let mut cut_short = 0;
    // Kills fall anywhere into a save, however fast the disk is: the time of a save is measured as
    // we go.
    let mut one_save = Duration::from_millis(20);
    for kill in 0..KILLS {
        let mut saver = Saver::start(dir.path());
        for _ in 0..random.below(3) {
            let began = Instant::now();
            saver.wait_for(SAVED);
            one_save = began.elapsed();
        }
        std::thread::sleep(one_save.mul_f64(random.below(1000) as f64 / 1000.0));
        saver.kill();
        cut_short += usize::from(names_in(dir.path()).iter().any(|name| name.starts_with('.')));
        match resolve(dir.path()).unwrap() {
            Resolution::Found(found) => {
                assert!(found.report.skipped.is_empty(), "kill {kill}: {}", found.report);
                let flavour = assert_whole(&found.checkpoint);
                assert!([0.5, 0.75].contains(&flavour), "kill {kill}: {flavour}");
                let step = Some(found.checkpoint.iteration());
                assert!(step >= last, "kill {kill}: went back from {last:?} to {step:?}");
                last = step;
            }
            Resolution::NothingFound { .. } => {
                assert_eq!(last, None, "kill {kill}: a fresh start");
            }
        }
    }
    assert!(last.is_some(), "not one save was completed in {KILLS} runs");
    assert!(cut_short > 0, "not one of {KILLS} kills fell into a save");
}
