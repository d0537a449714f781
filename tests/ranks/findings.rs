//! Findings of ranks in their own losses and gradients: the named rank, the state in checkpoints,
//! and the point at which a run gives up.

use std::path::Path;

use bridge_core::model::Batch;
use bridge_core::train::{
    Classified, Console, ForwardStep, LanguageModelStep, RunOptions, TrainError, pretrain, rank_timeout, run_on_threads,
};
use bridge_data::MicroBatch;
use bridge_dist::mesh::ProcessGroups;
use burn::tensor::{Device, Tensor};
use serde_json::Value;

use super::{Lines, config, options};
use bridge_tests::{bridge, figures_in};

/// Multiplies the losses of this rank by `factor`, from the micro-batch number `from` on, which
/// counts from 0.
struct Disturbed {
    factor: f64,
    from: usize,
    seen: usize,
}

impl ForwardStep for Disturbed {
    fn prepare(&mut self, micro_batch: &MicroBatch, device: &Device) -> Batch {
        let batch = LanguageModelStep.prepare(micro_batch, device);
        self.seen += 1;
        let factor = if self.seen > self.from { self.factor } else { 1.0 };
        Batch { loss_mask: batch.loss_mask * factor, ..batch }
    }
}

/// Result of a run of one layout: its end and its console.
struct Outcome {
    end: Result<i32, TrainError>,
    console: String,
}

/// Trains `ranks` ranks in `folder`; those of `disturbed` have their loss multiplied from a
/// micro-batch on.
fn train(folder: &Path, ranks: usize, disturbed: &[usize], factor: f64, from: usize, overrides: &[&str]) -> Outcome {
    let save = format!("checkpoint.save={:?}", folder.join("saved"));
    let common = [save.as_str(), "validation.eval_iters=0", "train.train_iters=4"];
    let config = config(folder, ranks, &[&common[..], overrides].concat());
    let lines = Lines::default();
    let program = |groups: ProcessGroups| {
        let rank = groups.world().rank();
        let mut options = RunOptions { console: Console::Writer(Box::new(lines.clone())), ..options(groups) };
        if disturbed.contains(&rank) {
            options.forward_step = Box::new(Disturbed { factor, from, seen: 0 });
        }
        pretrain(config.clone(), options).map(|report| report.reason.exit_code())
    };
    let end = run_on_threads(&config, rank_timeout(&config), program).map(|codes| codes[0]);
    let console = lines.text();
    Outcome { end, console }
}

fn train_state(folder: &Path, step: u64) -> Value {
    let path = folder.join(format!("saved/iter_{step:07}/train_state.json"));
    let sealed: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    sealed.get("content").cloned().unwrap_or(sealed)
}

#[test]
fn a_loss_that_is_no_number_names_the_rank_that_has_it() {
    for (ranks, layout, bad, named) in [
        (3, &["train.global_batch_size=6"][..], &[2][..], 2),
        (4, &["model.context_parallel_size=2"], &[3], 3),
        // Ranks 2 and 3 share the end of the model, and one loss.
        (4, &["model.tensor_model_parallel_size=2", "model.pipeline_model_parallel_size=2"], &[2, 3], 2),
    ] {
        for (factor, what) in [(f64::NAN, "found NaN"), (f64::INFINITY, "found Inf")] {
            let folder = tempfile::tempdir().unwrap();
            let error = train(folder.path(), ranks, bad, factor, 3, layout).end.expect_err("the loss is no number");
            let text = error.to_string();
            assert!(text.starts_with(&format!("Rank {named}, ")) && text.contains(what), "{layout:?}: {text}");
        }
    }
}

#[test]
fn a_spike_of_one_rank_is_told_by_the_first() {
    let folder = tempfile::tempdir().unwrap();
    // A hundred losses to learn from on each of three ranks, then one that a sum over ranks would
    // hide.
    let overrides = [
        "train.global_batch_size=60",
        "train.train_iters=6",
        "model.num_layers=1",
        "rerun_state_machine.check_for_spiky_loss=true",
        "rerun_state_machine.spiky_loss_factor=1.5",
    ];
    let outcome = train(folder.path(), 3, &[1], 1.9, 110, &overrides);
    outcome.end.unwrap();
    let spikes: Vec<&str> = outcome.console.lines().filter(|line| line.contains("Spiky loss")).collect();
    assert_eq!(spikes.len(), 10, "{}", outcome.console);
    assert!(spikes.iter().all(|line| line.starts_with("Rank 1, ")), "{spikes:?}");
}

#[test]
fn a_changed_spiky_loss_factor_counts_after_a_resume() {
    let folder = tempfile::tempdir().unwrap();
    let run = |factor: &str, iterations: &str| {
        let common = ["rerun_state_machine.check_for_spiky_loss=true", "train.global_batch_size=60"];
        let overrides = [&common[..], &["scheduler.override_opt_param_scheduler=true", factor, iterations]].concat();
        train(folder.path(), 1, &[], 1.0, 0, &overrides).console
    };
    let first = run("rerun_state_machine.spiky_loss_factor=1000.0", "train.train_iters=2");
    assert!(!first.contains("Spiky loss"), "{first}");
    let resumed = run("rerun_state_machine.spiky_loss_factor=0.5", "train.train_iters=3");
    assert_eq!(resumed.matches("Spiky loss").count(), 60, "{resumed}");
}

#[test]
fn each_rank_has_its_own_rerun_state_back() {
    let folder = tempfile::tempdir().unwrap();
    let common = [
        "train.global_batch_size=6",
        "rerun_state_machine.rerun_mode=validate_results",
        "rerun_state_machine.check_for_spiky_loss=true",
    ];
    // Two micro-batches an iteration: the third iteration is the first bad one.
    let first = train(folder.path(), 3, &[1], f64::NAN, 4, &common);
    assert_eq!(first.end.unwrap(), 16, "{}", first.console);
    assert!(first.console.contains("\nRank 1, "), "{}", first.console);
    let state = train_state(folder.path(), 2);
    let ranks = state["extra"]["rank_states"]["ranks"].as_array().expect("the state of each rank");
    let failed: Vec<bool> = ranks.iter().map(|rank| !rank["rerun_state_machine"]["failure"].is_null()).collect();
    assert_eq!(failed, [false, true, false], "{state}");
    assert!(ranks.iter().all(|rank| rank["loss_checks"]["spiky_loss"]["num_seen"].as_u64() > Some(0)), "{state}");

    // The same ranks repeat the step; rank 1 sees that it has the device that it had.
    let again = train(folder.path(), 3, &[1], f64::NAN, 0, &common);
    assert_eq!(again.end.unwrap(), 16, "{}", again.console);
    assert!(again.console.contains("Rank 1, ") && again.console.contains("same device"), "{}", again.console);
    // Another layout says nothing about rank 1; the step runs as any other.
    let other = train(folder.path(), 2, &[], 1.0, 0, &common);
    assert_eq!(other.end.unwrap(), 0, "{}", other.console);
    assert!(other.console.contains("this run has others"), "{}", other.console);
}

#[test]
fn injected_faults_go_on_where_they_were() {
    let faults = |folder: &Path, exit: &str| {
        let overrides = [
            "train.global_batch_size=6",
            "train.micro_batch_size=2",
            "train.train_iters=40",
            "rerun_state_machine.rerun_mode=validate_results",
            "rerun_state_machine.error_injection_rate=17",
            // A fault that ends nothing: the check is not fatal.
            "rerun_state_machine.check_for_nan_in_loss=false",
            "rerun_state_machine.check_for_spiky_loss=true",
            exit,
        ];
        let outcome = train(folder, 3, &[], 1.0, 0, &overrides);
        assert_eq!(outcome.end.unwrap(), 0);
        let lines = outcome.console.lines().filter(|line| line.contains("running the step again"));
        let place = |line: &str| {
            let (rank, rest) = line.strip_prefix("Rank ")?.split_once(", node ")?;
            let (_, rest) = rest.split_once("iteration ")?;
            Some((rank.parse::<usize>().ok()?, rest.split(':').next()?.parse::<u64>().ok()?))
        };
        lines.map(|line| place(line).expect("rank and iteration")).collect::<Vec<_>>()
    };
    const EXIT: u64 = 20;
    let whole = tempfile::tempdir().unwrap();
    // The first iteration of a process is not judged and draws no random numbers, so faults after
    // the exit come one iteration later.
    let later = |(rank, iteration)| (rank, if iteration > EXIT { iteration + 1 } else { iteration });
    let mut expected: Vec<_> = faults(whole.path(), "train.exit_interval=1000").into_iter().map(later).collect();
    expected.retain(|(_, iteration)| *iteration <= 40);
    assert!(expected.iter().any(|(_, iteration)| *iteration > EXIT), "{expected:?}");
    let parts = tempfile::tempdir().unwrap();
    let mut found = faults(parts.path(), "train.exit_interval=20");
    found.extend(faults(parts.path(), "train.exit_interval=1000"));
    assert_eq!(found, expected);
}

/// Gradients that are not finite, with a loss that is.
struct BadGradients;

impl ForwardStep for BadGradients {
    fn prepare(&mut self, micro_batch: &MicroBatch, device: &Device) -> Batch {
        LanguageModelStep.prepare(micro_batch, device)
    }

    fn objective(&mut self, loss_sum: Tensor<1>, _batch: &Batch) -> Tensor<1> {
        // The value stays; its derivative is infinite.
        let zero = loss_sum.clone() - loss_sum.clone().detach();
        loss_sum + zero.sqrt()
    }
}

#[test]
fn a_run_that_learns_nothing_any_more_fails_and_names_the_last_good_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    let saved = folder.path().join("saved");
    let save = format!("checkpoint.save={saved:?}");
    let run = |bad: bool, iterations: &str| {
        let common =
            [save.as_str(), "train.global_batch_size=6", "validation.eval_iters=0", "checkpoint.save_interval=1"];
        let limit = ["train.max_consecutive_skipped_iterations=5", "train.train_iters=40", iterations];
        let config = config(folder.path(), 3, &[&common[..], &limit].concat());
        let program = |groups: ProcessGroups| {
            let mut options = options(groups);
            if bad {
                options.forward_step = Box::new(BadGradients);
            }
            pretrain(config.clone(), options).map(|report| report.reason.exit_code())
        };
        run_on_threads(&config, rank_timeout(&config), program)
    };
    run(false, "train.exit_interval=2").unwrap();
    // Iterations 3 and 4 fail, which is not too much.
    assert_eq!(run(true, "train.exit_interval=4").unwrap(), [0; 3]);
    let count = |step| train_state(folder.path(), step)["extra"]["skipped_iterations"]["iterations"].clone();
    assert_eq!((count(2), count(3), count(4)), (Value::Null, 1.into(), 2.into()));
    // Skipped iterations count after a resume, too.
    let error = run(true, "train.exit_interval=1000").expect_err("nothing is learned");
    let text = error.to_string();
    assert!(!error.is_bad_input(), "{text}");
    assert!(text.starts_with("iteration 7: the last 5 iterations"), "{text}");
    assert!(text.ends_with(&format!("the last good checkpoint is {}", saved.join("iter_0000002").display())), "{text}");
    // Once gradients are right the run goes on, and the count begins again.
    run(false, "train.exit_interval=8").unwrap();
    assert_eq!(count(8), Value::Null);
}

#[test]
fn a_run_whose_losses_are_no_numbers_exits_with_1() {
    let folder = tempfile::tempdir().unwrap();
    // A learning rate that breaks the model at once; twenty iterations are the default.
    let common = ["optimizer.lr=1000", "optimizer.min_lr=1000", "optimizer.clip_grad=0.0", "train.train_iters=60"];
    let rest = [
        "checkpoint.save=saved",
        "checkpoint.save_interval=1",
        "rerun_state_machine.check_for_nan_in_loss=false",
        "scheduler.lr_warmup_iters=null",
        "--ranks",
        "4",
    ];
    let output = bridge(folder.path(), &[&common[..], &rest].concat());
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("the last 20 iterations were skipped: non-finite gradients or loss"), "{text}");
    assert!(text.contains("the last good checkpoint is saved/iter_0000005"), "{text}");
    let skipped = figures_in(&folder.path().join("runs/tiny"), "train", "skipped");
    assert_eq!(skipped.len(), 25, "{skipped:?}");
}

/// The schedule and the loss scale belong to the run, whether the optimizer is saved or not.
#[test]
fn a_run_without_saved_moments_goes_on_with_its_schedule() {
    let rates = |folder: &Path, last: &str| {
        let overrides = [
            "checkpoint.save=saved",
            "checkpoint.save_optim=false",
            "train.global_batch_size=6",
            "scheduler.weight_decay_incr_style=linear",
            "scheduler.start_weight_decay=0.1",
            "scheduler.end_weight_decay=0.3",
            "train.train_iters=12",
            "--ranks",
            "3",
            last,
        ];
        let output = bridge(folder, &overrides);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        ["learning_rate", "weight_decay"].map(|figure| figures_in(&folder.join("runs/tiny"), "train", figure))
    };
    let whole = tempfile::tempdir().unwrap();
    let expected = rates(whole.path(), "train.exit_interval=100");
    let parts = tempfile::tempdir().unwrap();
    rates(parts.path(), "train.exit_interval=5");
    assert_eq!(rates(parts.path(), "train.exit_interval=100"), expected);
}
