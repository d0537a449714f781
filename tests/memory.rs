//! Runs that do not fit are refused before they begin, and dry runs show what a run needs.

use std::fs;
use std::process::{Command, Output};

use bridge_tests::{program, root};
use serde_json::Value;

/// Runs `bridge train` on a recipe in a folder of its own; `limit` is a shell command that runs
/// first.
fn train(folder: &std::path::Path, limit: &str, arguments: &[&str]) -> Output {
    let recipe = root().join("recipes/tiny.toml");
    let mut shell = Command::new("sh");
    shell.arg("-c").arg(format!("{limit}exec \"$@\"")).arg("sh").arg(program()).arg("train").arg(recipe);
    shell.args(arguments).current_dir(folder).output().unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn is_empty(folder: &std::path::Path) -> bool {
    fs::read_dir(folder).unwrap().next().is_none()
}

const HUGE: [&str; 4] =
    ["model.num_layers=400", "model.hidden_size=8192", "model.num_attention_heads=64", "model.ffn_hidden_size=32768"];

#[test]
fn what_does_not_fit_is_refused_with_what_to_change() {
    let folder = tempfile::tempdir().unwrap();
    let output = train(folder.path(), "", &HUGE);
    let message = stderr(&output);
    assert_eq!(output.status.code(), Some(2), "{message}");
    for part in ["memory on this machine", "optimizer state", "a smaller model", "train.check_memory = false"] {
        assert!(message.contains(part), "{part} in {message}");
    }
    assert!(is_empty(folder.path()), "nothing was written");
    // On several ranks, each reports or says who does.
    let output = train(folder.path(), "", &[&HUGE[..], &["--ranks", "2"]].concat());
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
    assert!(stderr(&output).contains("2 ranks, the largest"), "{}", stderr(&output));
}

/// A long batch is refused under a limit of the process, and trained without it.
#[test]
fn limits_of_the_process_count() {
    let folder = tempfile::tempdir().unwrap();
    let long = ["train.micro_batch_size=1024", "train.global_batch_size=1024", "train.train_iters=3"];
    let no_evaluation = [&long[..], &["validation.eval_iters=0"]].concat();
    let output = train(folder.path(), "ulimit -d 400000; ", &no_evaluation);
    let message = stderr(&output);
    assert_eq!(output.status.code(), Some(2), "{message}");
    assert!(message.contains("ulimit -d") && message.contains("train.micro_batch_size = 512 (now 1024)"), "{message}");
    let output = train(folder.path(), "", &no_evaluation);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
}

#[test]
fn dry_runs_measure_and_leave_nothing() {
    let eight_bits = ["model.fp8=hybrid", "model.fp8_recipe=delayed"];
    for (ranks, more) in [("1", &[][..]), ("2", &[]), ("1", &eight_bits)] {
        let folder = tempfile::tempdir().unwrap();
        let wide = ["model.ffn_hidden_size=32768", "model.num_layers=4", "--dry-run", "--json", "--ranks", ranks];
        let output = train(folder.path(), "", &[&wide[..], more].concat());
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        let report = &report["report"];
        assert_eq!(report["world_size"].to_string(), ranks);
        assert_eq!(report["train_iters"], 20);
        let of = |name: &str| report[name].as_f64().unwrap();
        assert!((of("total_seconds") / of("step_seconds") - 20.0).abs() < 1e-9);
        let ratio = of("planned_bytes") / of("peak_bytes");
        assert!((0.7..1.4).contains(&ratio), "{ratio}: {report}");
        assert!(is_empty(folder.path()), "nothing was written");
    }
}

/// Errors of the recipe are found although its data is not read.
#[test]
fn dry_runs_check_the_recipe() {
    let folder = tempfile::tempdir().unwrap();
    let output = train(folder.path(), "", &["--dry-run", "optimizer.lr=-1"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("optimizer.lr"), "{}", stderr(&output));
}
