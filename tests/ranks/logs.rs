//! Log files that cannot be written: the run goes on, saves its checkpoints, and names the missing
//! logs.

use std::path::Path;
use std::process::{Command, Output};

use bridge_tests::{bridge, losses_of, recipe};

fn log_dir(folder: &Path) -> std::path::PathBuf {
    let logs = folder.join("runs/tiny");
    std::fs::create_dir_all(&logs).unwrap();
    logs
}

fn both(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

#[test]
fn a_full_log_disk_keeps_no_checkpoint_from_being_saved() {
    for ranks in ["1", "3"] {
        let folder = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink("/dev/full", log_dir(folder.path()).join("metrics.jsonl")).unwrap();
        let save = ["checkpoint.save=saved", "checkpoint.save_interval=4", "train.train_iters=14"];
        let rest = ["train.global_batch_size=6", "validation.eval_interval=7", "--ranks", ranks];
        let output = bridge(folder.path(), &[&save[..], &rest].concat());
        let text = both(&output);
        assert_eq!(output.status.code(), Some(0), "{text}");
        for step in [4, 8, 12, 14] {
            assert!(folder.path().join(format!("saved/iter_{step:07}/metadata.json")).is_file(), "{step}: {text}");
        }
        // At the first failure, the tenth, and the end: 14 steps and 4 evaluations.
        let lines: Vec<&str> = text.lines().filter(|line| line.contains("could not be written")).collect();
        assert_eq!(lines.len(), 3, "{text}");
        assert!(lines[0].contains("iteration 1: metrics.jsonl") && lines[0].contains("goes on without it"), "{text}");
        assert!(lines[2].contains("the logs are incomplete") && lines[2].contains("metrics.jsonl (18 times"), "{text}");
        // Other logs are whole.
        let events = std::fs::read_dir(folder.path().join("runs/tiny/tensorboard")).unwrap().next().unwrap().unwrap();
        assert!(events.metadata().unwrap().len() > 1000);
    }
}

/// A file that may not grow takes a part of a record, as a disk does that has room for a part of
/// it.
#[test]
fn what_fits_in_a_full_file_are_whole_records() {
    let folder = tempfile::tempdir().unwrap();
    let run = |iterations: &str| {
        let program = bridge_tests::program().display();
        let script = format!(
            "trap '' XFSZ; ulimit -f 4; exec {program} train {} train.num_threads=1 logger.progress=none {iterations}",
            recipe().display()
        );
        Command::new("bash").args(["-c", &script]).current_dir(folder.path()).output().expect("bash starts")
    };
    let output = run("train.train_iters=20");
    let text = both(&output);
    assert_eq!(output.status.code(), Some(0), "{text}");
    assert!(text.contains("metrics.jsonl could not be written: ") && text.contains("File too large"), "{text}");
    assert!(text.contains("the logs are incomplete"), "{text}");
    let bytes = std::fs::read(folder.path().join("runs/tiny/metrics.jsonl")).unwrap();
    assert!(bytes.len() <= 4096 && bytes.ends_with(b"}\n"), "{} bytes", bytes.len());
    let kept = losses_of(folder.path(), "train").len();
    assert!((5..20).contains(&kept), "{kept} records");
}

#[test]
fn a_console_that_is_gone_is_told_on_standard_error() {
    let folder = tempfile::tempdir().unwrap();
    let program = bridge_tests::program().display();
    let script = format!(
        "set -o pipefail; {program} train {} train.num_threads=1 logger.progress=none logger.log_interval=1 checkpoint.save=saved | true",
        recipe().display()
    );
    let output = Command::new("bash").args(["-c", &script]).current_dir(folder.path()).output().expect("bash starts");
    let text = both(&output);
    assert_eq!(output.status.code(), Some(0), "{text}");
    assert!(text.contains("lines could not be printed on the console"), "{text}");
    assert!(folder.path().join("saved/iter_0000020").is_dir(), "{text}");
}
