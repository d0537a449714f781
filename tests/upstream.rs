//! A configuration that Megatron Bridge saved, at the command line: checked, shown and trained
//! with.

use std::path::{Path, PathBuf};
use std::process::Command;

use bridge_tests::{program, root};
use serde_json::Value;

fn fixture() -> PathBuf {
    root().join("bridge-core/config/tests/fixtures/config/upstream_defaults.yaml")
}

/// Exit code and complete output.
fn bridge(folder: &Path, arguments: &[&str]) -> (Option<i32>, String) {
    let (command, overrides) = arguments.split_at(arguments.len().min(if arguments[0] == "config" { 2 } else { 1 }));
    let mut bridge = Command::new(program());
    let output = bridge.args(command).arg(fixture()).args(overrides).current_dir(folder).output().expect("it starts");
    let said = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    (output.status.code(), said)
}

#[test]
fn it_is_checked_shown_and_trained_with() {
    let folder = tempfile::tempdir().unwrap();
    let (code, said) = bridge(folder.path(), &["config", "check"]);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("checkpoint.ckpt_format = \"torch_dist\""), "{said}");
    assert!(said.contains("model.use_kitchen"), "{said}");
    let (code, said) = bridge(folder.path(), &["config", "check", "--json"]);
    let report: Value = serde_json::from_str(&said).expect("JSON");
    assert_eq!((code, &report["ok"]), (Some(0), &Value::Bool(true)));
    assert!(report["warnings"][0].as_str().is_some_and(|text| text.contains("model.transformer_impl")), "{said}");

    let (code, shown) = bridge(folder.path(), &["config", "show"]);
    assert_eq!(code, Some(0), "{shown}");
    assert!(shown.contains("kind = \"mock\"") && shown.contains("num_layers = 2"), "{shown}");

    // The output is a recipe, and trains to the same loss.
    let small = ["model.seq_length=16", "dataset.seq_length=16", "validation.eval_iters=0", "train.num_threads=1"];
    let (code, said) = bridge(folder.path(), &[&["train", "logger.log_dir=saved"], &small[..]].concat());
    assert_eq!(code, Some(0), "{said}");
    std::fs::write(folder.path().join("recipe.toml"), shown).unwrap();
    let mut again = Command::new(program());
    let again = again.args(["train", "recipe.toml", "logger.log_dir=shown"]).args(small).current_dir(folder.path());
    assert!(again.output().expect("it starts").status.success());
    assert_eq!(losses(&folder.path().join("saved")), losses(&folder.path().join("shown")));
}

fn losses(logs: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(logs.join("metrics.jsonl")).expect("written");
    let rows = text.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
    let losses: Vec<_> = rows.map(|row| row["loss"].clone()).filter(|loss| !loss.is_null()).collect();
    assert_eq!(losses.len(), 4, "one a step: {text}");
    losses
}

#[test]
fn what_asks_for_more_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let (code, said) = bridge(folder.path(), &["train", "model.fp16_lm_cross_entropy=true"]);
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("model.fp16_lm_cross_entropy") && said.contains("16 bits"), "{said}");
    assert!(std::fs::read_dir(folder.path()).unwrap().next().is_none(), "nothing is left behind");
}
