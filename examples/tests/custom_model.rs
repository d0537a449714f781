//! The model example: its recipe field, its parameters, that it learns, and that it resumes from a
//! checkpoint.

#[path = "../examples/custom_model.rs"]
#[allow(dead_code, reason = "main is not called")]
mod custom_model;

use std::path::{Path, PathBuf};

use bridge_core::model::Component;
use bridge_core::plan::{PlanOptions, plan};
use bridge_core::train::Console;
use custom_model::{recipe, train};
use serde_json::Value;

fn folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = std::fs::remove_dir_all(&folder);
    folder
}

fn overrides(logs: &Path, more: &[&str]) -> Vec<String> {
    let log_dir = format!("logger.log_dir='{}'", logs.display());
    std::iter::once(log_dir).chain(more.iter().map(|text| (*text).to_owned())).collect()
}

/// Training losses by step.
fn losses(logs: &Path) -> Vec<f64> {
    let text = std::fs::read_to_string(logs.join("metrics.jsonl")).unwrap();
    let records = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    records.filter(|record| record["kind"] == "train").map(|record| record["loss"].as_f64().unwrap()).collect()
}

#[test]
fn it_learns() {
    let logs = folder("custom_model");
    let report = train(&overrides(&logs, &["train.train_iters=40"]), Console::Silent).unwrap();
    let losses = losses(&logs);
    assert_eq!(losses.len(), 40);
    // ln 512 = 6.24 before anything is learned.
    assert!((losses[0] - 6.24).abs() < 0.1, "{}", losses[0]);
    let last = losses[39];
    assert!(last < 0.8 * losses[0], "{last}");
    let validation = report.validation.unwrap().loss().unwrap();
    assert!((f64::from(validation) - last).abs() < 1.0, "{validation} and {last}");
}

/// Plan and log count a mixer, not a decoder.
#[test]
fn it_is_planned_and_logged_with_its_own_costs() {
    let logs = folder("mixer_costs");
    let overrides = overrides(&logs, &["train.train_iters=1", "logger.log_throughput=true"]);
    let (config, registry) = recipe(&overrides).unwrap();
    let plan = plan(&config, &registry.models, &PlanOptions::default()).unwrap();
    let report = train(&overrides, Console::Silent).unwrap();
    let built: usize = report.run.chunks()[0].parameters().iter().map(|parameter| parameter.num_elements()).sum();
    assert_eq!(plan.parameters.total, built as u64);
    assert_eq!(plan.parameters.get(Component::Embedding), 512 * 64);
    // 8 sequences of 64 tokens; two layers that mix 64 positions and have a feed-forward block of
    // 256, and the output.
    let per_token = 6.0 * 64.0 * (2.0 * (64.0 + 2.0 * 256.0) + 512.0);
    assert_eq!(plan.flops.per_step, 8.0 * 64.0 * per_token);
    let text = std::fs::read_to_string(logs.join("metrics.jsonl")).unwrap();
    let step: Value =
        serde_json::from_str(text.lines().find(|line| line.contains("tflops_per_device")).unwrap()).unwrap();
    let logged = step["tflops_per_device"].as_f64().unwrap() * 1e12 * step["seconds"].as_f64().unwrap();
    assert!((logged / plan.flops.per_step - 1.0).abs() < 1e-9, "{logged}");
}

#[test]
fn its_field_decides_a_size() {
    let logs = folder("expansion");
    let report = train(&overrides(&logs, &["train.train_iters=1", "model.expansion=3"]), Console::Silent).unwrap();
    let parameters = report.run.chunks()[0].parameters();
    let up = parameters.iter().find(|parameter| parameter.name == "layers.1.up").unwrap();
    assert_eq!(up.shape, [3 * 64, 64]);
    let refused = |key_value: &str| train(&overrides(&logs, &[key_value]), Console::Silent).unwrap_err().to_string();
    assert!(refused("model.expansion=0").contains("expansion"));
    assert!(refused("model.expansion=wide").contains("model.expansion"));
    let message = refused("model.num_attention_heads=4");
    assert!(message.contains("mixer") && message.contains("model.num_attention_heads"), "{message}");
    assert!(refused("model.tensor_model_parallel_size=2").contains("mixer"));
    assert!(refused("model.expantion=2").contains("did you mean `expansion`"));
}

#[test]
fn it_resumes_bit_for_bit() {
    let [whole, parts, checkpoints] = ["whole", "parts", "checkpoints"].map(|name| folder(&format!("mixer_{name}")));
    train(&overrides(&whole, &["train.train_iters=8"]), Console::Silent).unwrap();
    let save = format!("checkpoint.save='{}'", checkpoints.display());
    let load = format!("checkpoint.load='{}'", checkpoints.display());
    let more = ["train.train_iters=8", &save, &load];
    train(&overrides(&parts, &[&more[..], &["train.exit_interval=5"]].concat()), Console::Silent).unwrap();
    assert_eq!(losses(&parts).len(), 5);
    let report = train(&overrides(&parts, &more), Console::Silent).unwrap();
    assert_eq!(report.train_state.step, 8);
    assert_eq!(losses(&parts), losses(&whole));
}
