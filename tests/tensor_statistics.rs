//! Statistics of tensors (`[tensor_inspect]`): the same for any layout of ranks, equal to other
//! figures of the run, and without effect on it.

use std::collections::BTreeMap;
use std::path::Path;

use bridge_tests::{bridge, losses, run_in};

const INSPECTED: [&str; 6] = [
    "train.train_iters=4",
    "train.global_batch_size=4",
    "train.micro_batch_size=1",
    "train.num_threads=1",
    "tensor_inspect.enabled=true",
    "tensor_inspect.features=features.yaml",
];

/// Two of four steps, of all kinds of tensors.
const FEATURES: &str = "
parameters:
  enabled: True
  layers:
    layer_name_regex_pattern: '(embedding|layers\\.1\\.).*weight'
  transformer_engine:
    LogTensorStats:
      enabled: True
      tensors: [weight, wgrad]
      stats: all
      freq: 2
streams:
  LogTensorStats:
    tensors_struct:
      - {tensor: output, stats: all}
      - {tensor: gradient, stats: all}
      - {tensor: activation, stats: [l2_norm]}
      - {tensor: dgrad, stats: [l2_norm]}
    freq: 2
";

/// Statistics by iteration, tensor and kind.
type Rows = BTreeMap<(u64, String, String), BTreeMap<String, String>>;

fn rows(path: &Path) -> Rows {
    let text = std::fs::read_to_string(path).expect("a table");
    let mut lines = text.lines().map(|line| line.split(',').map(str::to_owned).collect::<Vec<_>>());
    let head = lines.next().expect("a header");
    let row = |row: Vec<String>| {
        let key = (row[0].parse().unwrap(), row[1].clone(), row[2].clone());
        let values = head.iter().cloned().zip(row).skip(3).filter(|(name, value)| name != "run" && !value.is_empty());
        (key, values.collect())
    };
    lines.map(row).collect()
}

fn inspected(more: &[&str]) -> (Rows, Vec<f64>, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("features.yaml"), FEATURES).unwrap();
    run_in(folder.path(), &[&INSPECTED[..], more].concat());
    let losses = losses(folder.path());
    (rows(&folder.path().join("runs/tiny/tensor_statistics.csv")), losses, folder)
}

/// Figures that sums in another order, and parts with scales of their own, change.
fn assert_close(one: &Rows, other: &Rows, what: &[&str]) {
    assert_eq!(one.keys().collect::<Vec<_>>(), other.keys().collect::<Vec<_>>(), "{what:?}");
    for (key, values) in one {
        for (name, value) in values.iter().filter(|(name, _)| !name.contains("underflows") && *name != "histogram") {
            let numbers: [f64; 2] = [value, &other[key][name]].map(|number| number.parse().unwrap());
            // Means of gradients are differences of much larger numbers; the smallest number is one
            // of a hundred thousand.
            let scale: f64 = values.get("cur_amax").map_or(0.0, |amax| amax.parse().unwrap());
            let limit = match name.as_str() {
                "mean" => 1e-6 * scale,
                "dynamic_range" | "zeros%" => continue,
                _ => 2e-5 * numbers[0].abs() + 1e-7 * scale,
            };
            assert!((numbers[0] - numbers[1]).abs() <= limit, "{what:?}: {name} of {key:?}: {numbers:?}");
        }
    }
}

#[test]
fn every_layout_has_the_statistics_of_one_rank() {
    let (one, losses_of_one, _) = inspected(&[]);
    for (kind, expected) in [("weight", 2), ("wgrad", 2), ("output", 2), ("gradient", 2)] {
        let steps: std::collections::BTreeSet<u64> =
            one.keys().filter(|(_, _, of)| of == kind).map(|(step, _, _)| *step).collect();
        assert_eq!(steps.len(), expected, "{kind}");
        assert_eq!(steps.first(), Some(&2), "{kind}");
    }
    for more in [
        &["--ranks", "2", "model.tensor_model_parallel_size=2"][..],
        &["--ranks", "2", "model.tensor_model_parallel_size=2", "model.sequence_parallel=true"],
        &["--ranks", "2", "model.pipeline_model_parallel_size=2"],
        &["--ranks", "2", "model.pipeline_model_parallel_size=2", "model.pipeline_schedule=zb_h1"],
        &["--ranks", "2", "model.context_parallel_size=2"],
        &["--ranks", "2", "ddp.use_distributed_optimizer=true", "ddp.average_in_collective=true"],
        &["model.recompute_granularity=full", "model.recompute_method=uniform", "model.recompute_num_layers=1"],
        &["model.calculate_per_token_loss=true"],
    ] {
        let (rows, losses, _) = inspected(more);
        assert_eq!(losses.len(), losses_of_one.len());
        assert_close(&one, &rows, more);
    }
}

#[test]
fn they_are_those_of_the_run_and_change_nothing() {
    let (rows, losses_inspected, folder) = inspected(&["logger.log_params_norm=true"]);
    let plain = tempfile::tempdir().unwrap();
    run_in(plain.path(), &INSPECTED[..4]);
    assert_eq!(losses_inspected, losses(plain.path()));
    let of = |step: u64, tensor: &str, kind: &str, name: &str| -> f64 {
        rows[&(step, tensor.to_owned(), kind.to_owned())][name].parse().unwrap()
    };
    // The output of a segment is the input of the next one, and so are their gradients.
    for (before, after) in [("embedding", "layers.0.attention"), ("layers.0.mlp", "layers.1.attention")] {
        assert_eq!(of(2, before, "output", "l2_norm"), of(2, after, "activation", "l2_norm"));
        assert_eq!(of(4, before, "gradient", "l2_norm"), of(4, after, "dgrad", "l2_norm"));
        assert!(of(4, before, "gradient", "l2_norm") > 0.0);
    }
    // All parameters together have the norm that is logged, and so have all gradients.
    let all = tempfile::tempdir().unwrap();
    let every = ["tensor_inspect.enabled=true", "logger.log_params_norm=true", "logger.log_interval=1"];
    run_in(all.path(), &[&INSPECTED[..4], &every].concat());
    let table = self::rows(&all.path().join("runs/tiny/tensor_statistics.csv"));
    let metrics = std::fs::read_to_string(all.path().join("runs/tiny/metrics.jsonl")).unwrap();
    let logged = metrics.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    let logged = logged.filter(|record| record["kind"] == "train");
    for record in logged {
        let step = record["iteration"].as_u64().unwrap();
        for (kind, name) in [("weight", "params_norm"), ("wgrad", "grad_norm")] {
            let of_kind = table.iter().filter(|((at, _, of), _)| *at == step && of == kind);
            let norms = of_kind.map(|(_, values)| values["l2_norm"].parse::<f64>().unwrap().powi(2));
            let (norm, logged) = (norms.sum::<f64>().sqrt(), record[name].as_f64().unwrap());
            assert!((norm / logged - 1.0).abs() < 1e-6, "{name} at {step}: {norm} {logged}");
        }
    }
    let again = folder.path().join("runs/tiny");
    assert!(again.join("tensor_statistics.csv").is_file());
}

#[test]
fn a_wrong_specification_is_refused_before_training() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("features.yaml"), FEATURES.replace("wgrad", "wgrads")).unwrap();
    let output = bridge(folder.path(), &INSPECTED);
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{text}");
    for part in ["tensor_inspect.features", "parameters.transformer_engine.LogTensorStats.tensors", "`wgrad`"] {
        assert!(text.contains(part), "{part} in {text}");
    }
}
