//! Ends of runs that learn nothing or are interrupted.

use super::*;

#[test]
fn a_run_that_learned_nothing_is_not_done() {
    check(
        run_on_text(),
        &[
            Case {
                does: "trains with a learning rate of 1000",
                before: as_it_is,
                arguments: &[
                    "train",
                    "notes.toml",
                    "checkpoint.save=new",
                    "optimizer.lr=1000",
                    "optimizer.min_lr=1000",
                    "optimizer.clip_grad=0.0",
                    "rerun_state_machine.check_for_nan_in_loss=false",
                    "train.train_iters=60",
                ],
                code: 1,
                says: &[
                    "iterations were skipped: non-finite gradients or loss",
                    "last good checkpoint is new/iter_00000",
                ],
            },
            Case {
                does: "keeps one checkpoint of such a run",
                before: as_it_is,
                arguments: &[
                    "train",
                    "notes.toml",
                    "checkpoint.save=new",
                    "checkpoint.most_recent_k=1",
                    "optimizer.lr=1000",
                    "optimizer.min_lr=1000",
                    "optimizer.clip_grad=0.0",
                    "rerun_state_machine.check_for_nan_in_loss=false",
                    "train.train_iters=60",
                ],
                code: 1,
                says: &["last good checkpoint is new/iter_00000"],
            },
            Case {
                does: "trains weights that have run away",
                before: as_it_is,
                arguments: &[
                    "train",
                    "notes.toml",
                    "checkpoint.save=new",
                    "optimizer.lr=10",
                    "optimizer.min_lr=10",
                    "train.train_iters=60",
                ],
                code: 0,
                says: &["warning: the loss is ", "worse than guessing (5.9", "the run has diverged"],
            },
        ],
    );
}

/// Sends SIGINT as soon as a run of this recipe has trained a few steps, and returns its output and
/// its exit code.
#[cfg(unix)]
fn interrupted(folder: &Path, arguments: &[&str]) -> (String, Option<i32>) {
    let log = std::fs::File::create(folder.join("log")).unwrap();
    let child = Command::new(program())
        .args([
            "train",
            "notes.toml",
            "checkpoint.save=new",
            "train.train_iters=1000000",
            "checkpoint.save_interval=null",
        ])
        .args(arguments)
        .current_dir(folder)
        .stdout(log.try_clone().unwrap())
        .stderr(log)
        .spawn()
        .expect("bridge starts");
    let metrics = folder.join("runs/notes/metrics.jsonl");
    let id = child.id().to_string();
    let mut child = child;
    let is_training = || std::fs::read_to_string(&metrics).unwrap_or_default().lines().count() > 8;
    while !is_training() && child.try_wait().unwrap().is_none() {
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    assert!(Command::new("kill").args(["-INT", &id]).status().unwrap().success());
    let status = child.wait().unwrap();
    (std::fs::read_to_string(folder.join("log")).unwrap(), status.code())
}

#[cfg(unix)]
#[test]
fn an_interrupted_run_says_at_once_what_follows() {
    for ranks in ["1", "2"] {
        let place = tempfile::tempdir().unwrap();
        copy(run_on_text(), place.path());
        let (text, code) = interrupted(place.path(), &["--ranks", ranks]);
        assert_eq!(code, Some(130), "{text}");
        assert!(text.contains("SIGINT: saving after this step, 0."), "{text}");
        assert!(text.contains("; Ctrl-C again to stop without saving"), "{text}");
        assert!(place.path().join("new/latest_checkpointed_iteration.txt").is_file(), "{text}");
    }
}
