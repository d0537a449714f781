//! Output of a run about its time and memory: timers by level, throughput, memory over ranks.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use bridge_core::train::{pretrain, rank_timeout, run_on_wrapped_threads};
use bridge_dist::comm::Operation;
use bridge_dist::comm::counting::{CountingCommunicator, Ledger};
use serde_json::Value;

use super::figures::{beginning, curves};
use super::{config, options};
use bridge_tests::bridge;

/// Output of a run that succeeds.
fn printed(folder: &Path, arguments: &[&[&str]]) -> String {
    let output = bridge(folder, &arguments.concat());
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// The times of each timer, in the order printed: of one rank, or the largest over several.
fn times(said: &str) -> BTreeMap<&str, Vec<f64>> {
    let mut times: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
    for line in said.lines().filter(|line| line.starts_with("    ")) {
        if let Some((field, time)) = line.split_once(".: ") {
            let name = field.trim_matches(['.', ' ']);
            times.entry(name).or_default().push(time.parse().unwrap_or_else(|_| panic!("{line}")));
        }
    }
    times
}

/// The records of the steps in `metrics.jsonl`.
fn steps(folder: &Path) -> Vec<Value> {
    let log = std::fs::read_to_string(folder.join("runs/tiny/metrics.jsonl")).unwrap();
    let records = log.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    records.filter(|record| record["kind"] == "train").collect()
}

const SHORT: [&str; 4] =
    ["train.train_iters=2", "logger.log_interval=1", "validation.eval_iters=1", "validation.eval_interval=null"];

#[test]
fn every_timer_runs_at_its_level() {
    const LEVELS: [&[&str]; 3] = [
        &["evaluate", "save-checkpoint"],
        &[
            "all-grads-sync",
            "embedding-grads-all-reduce",
            "forward-backward",
            "layernorm-grads-all-reduce",
            "optimizer",
            "optimizer-clip-main-grad",
            "optimizer-copy-main-to-model-params",
            "optimizer-copy-to-main-grad",
            "optimizer-count-zeros",
            "optimizer-inner-step",
            "optimizer-unscale-and-check-inf",
            "params-all-gather",
        ],
        &[
            "backward-compute",
            "backward-recv",
            "backward-send",
            "batch-generator",
            "forward-compute",
            "forward-recv",
            "forward-send",
            "grads-reduce-exposed",
            "grads-reduce-in-flight",
            "params-all-gather-exposed",
        ],
    ];
    // Saves and evaluates at its end only, when the last line of a step has been printed.
    let run = [
        "--ranks",
        "4",
        "model.pipeline_model_parallel_size=2",
        "ddp.use_distributed_optimizer=true",
        "model.share_embeddings_and_output_weights=true",
        "logger.log_num_zeros_in_grad=true",
        "train.train_iters=2",
        "logger.log_interval=2",
        "validation.eval_interval=2",
        "validation.eval_iters=1",
        "checkpoint.save=saved",
    ];
    for level in -1..=2 {
        let folder = tempfile::tempdir().unwrap();
        let option = if level < 0 { &[][..] } else { &["logger.timing_log_option=max"] };
        let said = printed(folder.path(), &[&run, option, &[&format!("logger.timing_log_level={level}")]]);
        let found: BTreeSet<&str> = times(&said).into_keys().collect();
        let expected: BTreeSet<&str> = LEVELS[..(level + 1) as usize].concat().into_iter().collect();
        assert_eq!(found, expected, "level {level}");
        assert_eq!(said.contains("max time across ranks (ms):\n    evaluate ..."), level >= 0, "{said}");
    }
}

#[test]
fn parts_take_no_longer_than_the_whole() {
    let folder = tempfile::tempdir().unwrap();
    let narrow = ["mixed_precision=bf16_mixed", "logger.timing_log_level=2", "logger.log_timers_to_tensorboard=true"];
    let said = printed(folder.path(), &[&SHORT, &narrow]);
    let times = times(&said);
    let at = |step: usize, name: &str| times[name][step];
    let sum = |names: &[&str], step: usize| -> f64 { names.iter().map(|name| at(step, name)).sum() };
    let optimizer: Vec<&str> = times.keys().filter(|name| name.starts_with("optimizer-")).copied().collect();
    assert_eq!(optimizer.len(), 5, "{optimizer:?}");
    for step in 0..2 {
        let computed = sum(&["forward-compute", "backward-compute"], step);
        // Printed to a hundredth of a millisecond.
        assert!(computed > 0.0 && computed <= at(step, "forward-backward") + 0.02, "{said}");
        assert!(sum(&optimizer, step) <= at(step, "optimizer") + 0.05, "{said}");
    }
    let curves = curves(&folder.path().join("runs/tiny"));
    for (name, printed) in &times {
        let metric = &curves[&format!("{name}-time")];
        for ((_, seconds), milliseconds) in metric.iter().zip(printed) {
            assert!((f64::from(*seconds) * 1000.0 - milliseconds).abs() < 0.01, "{name}");
        }
    }
}

#[test]
fn ranks_begin_the_phases_of_a_step_together_where_asked() {
    let barriers = |overrides: &[&str]| {
        let folder = tempfile::tempdir().unwrap();
        let common = ["train.train_iters=2", "validation.eval_iters=0", "logger.timing_log_level=1"];
        let config = config(folder.path(), 2, &[&common[..], overrides].concat());
        let of_both_ranks = Ledger::default();
        run_on_wrapped_threads(
            &config,
            rank_timeout(&config),
            |world| Arc::new(CountingCommunicator::new(world, of_both_ranks.clone())),
            |groups| pretrain(config.clone(), options(groups)).map(drop),
        )
        .unwrap();
        let counts = of_both_ranks.counts();
        counts.iter().filter(|((_, operation), _)| *operation == Operation::Barrier).map(|(_, c)| c.operations).sum()
    };
    let (together, alone): (u64, u64) = (barriers(&[]), barriers(&["logger.barrier_with_L1_time=false"]));
    // Forward and backward, the reduction of gradients, the update: two ranks, two steps.
    assert_eq!(together - alone, 3 * 2 * 2);
}

#[test]
fn times_at_level_0_are_shown_as_asked_for() {
    let run = ["--ranks", "3", "train.global_batch_size=6", "train.train_iters=1", "validation.eval_interval=1"];
    let said = |option: &[&str]| printed(tempfile::tempdir().unwrap().path(), &[&run, option]);
    let all = said(&["logger.timing_log_option=all"]);
    let ranks = all.split("times across ranks (ms):\n  evaluate:\n").nth(1).expect("a report");
    let ranks: Vec<&str> = ranks.lines().take(3).map(|line| &line[..14]).collect();
    assert_eq!(ranks, ["     rank  0: ", "     rank  1: ", "     rank  2: "], "{all}");
    assert!(said(&[]).contains("(min, max) time across ranks (ms):\n    evaluate ...."));
}

/// Operations of a step of the tiny model on 8 sequences of 64 tokens, counted by hand.
const FLOPS: f64 = {
    let mlp = 6 * 64 * 192 * 3 * 2;
    let attention = 6 * 2 * (64 * (64 + 32 + 32) + 64 * 64 + 64 * 64);
    let head = 6 * 64 * 512;
    (8 * 64 * (mlp + attention + head)) as f64
};

#[test]
fn throughput_is_of_the_steps_it_names() {
    for (ranks, layout) in [(1, "train.train_iters=7"), (2, "model.pipeline_model_parallel_size=2")] {
        let folder = tempfile::tempdir().unwrap();
        let throughput = [
            "logger.log_throughput=true",
            "logger.log_throughput_to_tensorboard=true",
            "logger.throughput_window_size=3",
            "train.iterations_to_skip=[4]",
            "train.train_iters=7",
            "logger.log_interval=3",
            "validation.eval_iters=1",
        ];
        let said = printed(folder.path(), &[&throughput, &["--ranks", &ranks.to_string(), layout]]);
        let steps = steps(folder.path());
        assert_eq!(steps.len(), 6);
        let (mut with_window, devices) = (0, f64::from(ranks));
        for step in &steps {
            let figure = |name: &str| step[name].as_f64().unwrap_or_else(|| panic!("{name} in {step}"));
            let flops = figure("tflops_per_device") * figure("seconds") * devices * 1e12;
            assert!((flops / FLOPS - 1.0).abs() < 1e-9, "{flops}, expected {FLOPS}");
            if step.get("throughput/batches_per_sec").is_none() {
                continue;
            }
            with_window += 1;
            let close = |found: f64, expected: f64| assert!((found / expected - 1.0).abs() < 1e-9, "{step}");
            let batches = figure("throughput/batches_per_sec");
            // An iteration that is skipped takes no samples.
            close(figure("throughput/samples_per_sec"), 8.0 * batches);
            close(figure("throughput/tokens_per_sec"), 64.0 * 8.0 * batches);
            for name in ["batches", "samples", "tokens"] {
                let all = figure(&format!("throughput/{name}_per_sec"));
                close(figure(&format!("throughput/device/{name}_per_sec")), all / devices);
            }
            assert_eq!((figure("throughput/micro_batch_size"), figure("throughput/global_batch_size")), (1.0, 8.0));
        }
        assert_eq!(with_window, 4, "the window is full after three steps");
        let curves = curves(&folder.path().join("runs/tiny"));
        let iterations: Vec<i64> = curves["throughput/global_batch_size"].iter().map(|point| point.0).collect();
        assert_eq!(iterations, [3, 5, 6, 7]);
        assert_eq!(beginning(&curves, "throughput/").count(), 2 * 3 + 2 + 2);
        assert_eq!(said.matches("MODEL_TFLOP/s/GPU\n [").count(), 2, "a short line before each long one: {said}");
    }
}

#[test]
fn memory_is_of_all_ranks_and_only_what_is_known() {
    let folder = tempfile::tempdir().unwrap();
    let memory = ["logger.log_memory_to_tensorboard=true", "logger.log_memory_interval=2", "train.global_batch_size=6"];
    let said = printed(folder.path(), &[&SHORT, &memory, &["--ranks", "3"]]);
    let line = "[Rank 0] (after 1 iterations) memory (GB) | mem-host-gigabytes: ";
    assert_eq!((said.matches(line).count(), said.matches("[Rank ").count()), (1, 1), "one process, one line: {said}");
    assert_eq!(said.matches(" [iteration 2] memory (GiB): ").count(), 1, "{said}");
    assert!(!said.contains("device memory"), "the CPU has none: {said}");
    let curves = curves(&folder.path().join("runs/tiny"));
    let names: Vec<&String> = beginning(&curves, "memory/").map(|(name, _)| name).collect();
    assert_eq!(names, ["memory/mem-host-gigabytes", "memory/mem-max-host-gigabytes"]);
    assert!(curves["memory/mem-host-gigabytes"].iter().all(|(_, gigabytes)| *gigabytes > 0.001));
}

#[test]
fn the_norm_of_parameters_is_there_whenever_something_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let norm = ["logger.log_params_norm=true", "logger.tensorboard_log_interval=3", "logger.log_interval=2"];
    let said = printed(folder.path(), &[&norm, &["train.train_iters=6", "validation.eval_iters=1"]]);
    let with_norm = steps(folder.path()).iter().filter(|step| step.get("params_norm").is_some()).count();
    assert_eq!(with_norm, 4, "after 2, 3, 4 and 6");
    assert_eq!(said.matches(" | params norm: ").count(), 3, "{said}");
    let curves = curves(&folder.path().join("runs/tiny"));
    assert_eq!(curves["params-norm"].iter().map(|point| point.0).collect::<Vec<_>>(), [3, 6]);
}
