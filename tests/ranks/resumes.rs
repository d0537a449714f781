//! Other state that must survive between two parts of a run.

use std::path::Path;

use bridge_tests::{bridge, figures_in, losses};

/// Iterations 2, 5 and 6 are skipped; the run may be cut anywhere around them.
#[test]
fn skipped_iterations_are_the_same_in_parts_and_in_one_piece() {
    let train = |folder: &Path, more: &[&str]| {
        let common = [
            "train.iterations_to_skip=[2, 5, 6]",
            "train.global_batch_size=6",
            "train.train_iters=9",
            "checkpoint.save=saved",
            "checkpoint.save_interval=5",
            "--ranks",
            "3",
        ];
        let output = bridge(folder, &[&common[..], more].concat());
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let whole = tempfile::tempdir().unwrap();
    train(whole.path(), &[]);
    // The checkpoint due in an iteration that is skipped is there.
    assert!(whole.path().join("saved/iter_0000005").is_dir());
    let expected = losses(whole.path());
    let consumed = |folder: &Path| figures_in(&folder.join("runs/tiny"), "train", "consumed_samples");
    for exit in ["1", "2", "4", "5"] {
        let parts = tempfile::tempdir().unwrap();
        let exit_interval = format!("train.exit_interval={exit}");
        let first = train(parts.path(), &[&exit_interval]);
        assert!(first.contains(&format!("exiting program at iteration {exit}")), "{first}");
        train(parts.path(), &[]);
        assert_eq!(losses(parts.path()), expected, "cut after iteration {exit}");
        assert_eq!(consumed(parts.path()), consumed(whole.path()), "cut after iteration {exit}");
    }
}

/// A run may go on with another batch: it takes the samples that come next, none twice and none
/// left out.
#[test]
fn a_changed_batch_goes_on_with_the_next_samples() {
    let folder = tempfile::tempdir().unwrap();
    let train = |more: &[&str]| {
        let common = ["checkpoint.save=saved", "train.train_iters=8", "scheduler.override_opt_param_scheduler=true"];
        let output = bridge(folder.path(), &[&common[..], more].concat());
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    };
    train(&["train.global_batch_size=6", "train.exit_interval=5", "--ranks", "3"]);
    train(&["train.global_batch_size=8", "train.micro_batch_size=2", "--ranks", "2"]);
    let consumed = figures_in(&folder.path().join("runs/tiny"), "train", "consumed_samples");
    assert_eq!(consumed, [6.0, 12.0, 18.0, 24.0, 30.0, 38.0, 46.0, 54.0]);
}
