//! Findings of repeated steps about faults, injected and real, on one rank and many, also after a
//! restart elsewhere; and replicas that differ.

use std::path::Path;

use bridge_core::model::Batch;
use bridge_core::train::{
    Console, ForwardStep, LanguageModelStep, RunContext, RunOptions, Subsystem, SubsystemError, TrainError, pretrain,
    rank_timeout, run_on_threads,
};
use bridge_data::MicroBatch;
use bridge_dist::mesh::ProcessGroups;
use burn::tensor::{Device, Tensor};

use super::{Lines, config, options};

/// End of a run, and its console.
type Outcome = (Result<i32, TrainError>, String);

/// Trains `ranks` ranks in `folder` for six iterations of two micro-batches a rank, with options
/// that `change` changes for each rank.
fn train(folder: &Path, ranks: usize, overrides: &[&str], change: impl Fn(usize, &mut RunOptions) + Sync) -> Outcome {
    let save = format!("checkpoint.save={:?}", folder.join("saved"));
    let batch = format!("train.global_batch_size={}", 2 * ranks);
    let common =
        [save.as_str(), batch.as_str(), "validation.eval_iters=0", "train.train_iters=6", "model.num_layers=1"];
    let config = config(folder, ranks, &[&common[..], overrides].concat());
    let lines = Lines::default();
    let program = |groups: ProcessGroups| {
        let rank = groups.world().rank();
        let mut options = RunOptions { console: Console::Writer(Box::new(lines.clone())), ..options(groups) };
        change(rank, &mut options);
        pretrain(config.clone(), options).map(|report| report.reason.exit_code())
    };
    let end = run_on_threads(&config, rank_timeout(&config), program).map(|codes| codes[0]);
    let console = lines.text();
    (end, console)
}

/// The ranks of lines that say `what`.
fn ranks_in(console: &str, what: &str) -> Vec<usize> {
    let lines = console.lines().filter(|line| line.contains(what));
    lines.map(|line| line.strip_prefix("Rank ").unwrap().split(',').next().unwrap().parse().unwrap()).collect()
}

const VALIDATING: &str = "rerun_state_machine.rerun_mode=validate_results";

/// Cases of each kind of fault on each number of ranks: ten make the sixty that are asked for.
fn cases() -> usize {
    std::env::var("BRIDGE_INJECTED_FAULTS").map_or(2, |cases| cases.parse().expect("a number of cases"))
}

#[test]
fn every_injected_fault_is_told_for_what_it_is() {
    let faults = [
        ("transient_error", "transient error: ", None),
        ("persistent_error", "running the step again", Some("persistent error: ")),
        ("correct_result", "running the step again", Some("the result is correct")),
    ];
    for (case, ranks) in (0..cases()).flat_map(|case| [(case, 1), (case, 4)]) {
        for (kind, at_once, after_restart) in faults {
            let folder = tempfile::tempdir().unwrap();
            let seed = format!("rng.seed={}", 1000 + 77 * case);
            let kind = format!("rerun_state_machine.error_injection_type={kind}");
            let overrides = [VALIDATING, "rerun_state_machine.error_injection_rate=7", &seed, &kind];
            let (end, console) = train(folder.path(), ranks, &overrides, |_, _| {});
            assert_eq!(end.unwrap(), if after_restart.is_some() { 16 } else { 17 }, "{overrides:?}: {console}");
            let asked = ranks_in(&console, "running the step again");
            assert!(!asked.is_empty() && console.contains("(injected)"), "{overrides:?}: {console}");
            assert_eq!(ranks_in(&console, at_once), asked, "{overrides:?}: {console}");
            let Some(diagnosis) = after_restart else { continue };
            // Without further injection the suspicious result is still judged.
            let (end, console) = train(folder.path(), ranks, &[VALIDATING, &seed], |_, _| {});
            assert_eq!(end.unwrap(), 17, "{overrides:?}: {console}");
            assert_eq!(ranks_in(&console, diagnosis), asked, "{overrides:?}: {console}");
        }
    }
}

/// Spoils the losses of micro-batches in a range, counted over all passes of the process.
struct Spoiled {
    from: usize,
    to: usize,
    seen: usize,
}

impl ForwardStep for Spoiled {
    fn prepare(&mut self, micro_batch: &MicroBatch, device: &Device) -> Batch {
        let batch = LanguageModelStep.prepare(micro_batch, device);
        self.seen += 1;
        let factor = if (self.from..self.to).contains(&(self.seen - 1)) { f64::NAN } else { 1.0 };
        Batch { loss_mask: batch.loss_mask * factor, ..batch }
    }
}

#[test]
fn real_faults_are_told_apart_on_one_rank_and_many() {
    for (ranks, bad) in [(1, 0), (4, 2)] {
        let run = |folder: &Path, spoils: (usize, usize), node: &str| {
            let change = |rank: usize, options: &mut RunOptions| {
                options.node = Some(format!("{node}-{rank}"));
                if rank == bad {
                    options.forward_step = Box::new(Spoiled { from: spoils.0, to: spoils.1, seen: 0 });
                }
            };
            let (end, console) = train(folder, ranks, &[VALIDATING], change);
            (end.unwrap(), console)
        };
        let names = |console: &str, node: &str, what: &str| {
            let place = format!("Rank {bad}, node {node}-{bad}, device 0, iteration 3: ");
            console.lines().any(|line| line.starts_with(&place) && line.contains(what))
        };
        // The third iteration goes wrong, and its repetition does not.
        let folder = tempfile::tempdir().unwrap();
        let (code, console) = run(folder.path(), (4, 6), "first");
        assert!(code == 17 && names(&console, "first", "transient error"), "{console}");
        // It goes wrong each time; on the same device again nothing is known; on another one it
        // does not.
        for (spoils, diagnosis) in [((0, 0), "persistent error"), ((0, usize::MAX), "the result is correct")] {
            let folder = tempfile::tempdir().unwrap();
            let (code, console) = run(folder.path(), (4, usize::MAX), "first");
            assert!(code == 16 && names(&console, "first", "agrees"), "{console}");
            let (code, console) = run(folder.path(), (0, usize::MAX), "first");
            assert!(code == 16 && names(&console, "first", "same device"), "{console}");
            let (code, console) = run(folder.path(), spoils, "second");
            assert!(code == 17 && names(&console, "second", diagnosis), "{diagnosis}: {console}");
        }
    }
}

/// NaN gradients on one rank, from a given micro-batch on, with a finite loss.
struct BadGradients {
    from: usize,
    seen: usize,
}

impl ForwardStep for BadGradients {
    fn prepare(&mut self, micro_batch: &MicroBatch, device: &Device) -> Batch {
        LanguageModelStep.prepare(micro_batch, device)
    }

    fn objective(&mut self, loss_sum: Tensor<1>, _batch: &Batch) -> Tensor<1> {
        self.seen += 1;
        if self.seen <= self.from {
            return loss_sum;
        }
        let zero = loss_sum.clone() - loss_sum.clone().detach();
        loss_sum + zero.sqrt()
    }
}

#[test]
fn gradients_are_judged_before_ranks_add_them_up() {
    let sharded = ["ddp.use_distributed_optimizer=true", "ddp.overlap_grad_reduce=true"];
    let whole = ["ddp.data_parallel_sharding_strategy=optim_grads_params", "ddp.use_megatron_fsdp=true"];
    for (ranks, bad, more) in [(1, 0, &[][..]), (3, 1, &[][..]), (3, 2, &sharded), (2, 1, &whole)] {
        let run = |mode: &str| {
            let folder = tempfile::tempdir().unwrap();
            let overrides = [&["ddp.check_for_nan_in_grad=true", mode], more].concat();
            train(folder.path(), ranks, &overrides, |rank, options| {
                if rank == bad {
                    options.forward_step = Box::new(BadGradients { from: 4, seen: 0 });
                }
            })
        };
        let error = run("rerun_state_machine.rerun_mode=disabled").0.expect_err("gradients are no numbers").to_string();
        assert!(error.starts_with(&format!("Rank {bad}, ")) && error.contains("iteration 3"), "{error}");
        assert!(error.contains("local gradient norm") && error.contains("ddp.check_for_nan_in_grad"), "{error}");
        let (end, console) = run(VALIDATING);
        assert_eq!(end.unwrap(), 16, "{console}");
        assert_eq!(ranks_in(&console, "the rerun on the same device agrees"), [bad], "{console}");
    }
}

/// Scales the loss a little more each time, on one rank, so that repeated passes differ.
struct Drifting(f64);

impl ForwardStep for Drifting {
    fn prepare(&mut self, micro_batch: &MicroBatch, device: &Device) -> Batch {
        let batch = LanguageModelStep.prepare(micro_batch, device);
        self.0 *= 1.01;
        Batch { loss_mask: batch.loss_mask * self.0, ..batch }
    }
}

#[test]
fn differences_of_repeated_steps_are_reported_by_rank_and_change_nothing() {
    let losses = |folder: &Path| bridge_tests::figures_in(&folder.join("logs"), "train", "loss");
    let run = |mode: &str, bad: Option<usize>| {
        let folder = tempfile::tempdir().unwrap();
        let overrides = [mode, "logger.log_interval=4", "ddp.check_for_nan_in_grad=true"];
        let (end, console) = train(folder.path(), 3, &overrides, |rank, options| {
            if bad == Some(rank) {
                options.forward_step = Box::new(Drifting(1.0));
            }
        });
        assert_eq!(end.unwrap(), 0, "{console}");
        (losses(folder.path()), console)
    };
    let (expected, _) = run("rerun_state_machine.rerun_mode=disabled", None);
    let (found, console) = run("rerun_state_machine.rerun_mode=report_determinism_stats", None);
    assert_eq!(found, expected);
    // Four steps and two, of two micro-batches each, on three ranks; with a check for NaN and one
    // for infinity.
    let count = |what: &str| console.matches(what).count();
    assert_eq!((count("of each of 4 steps:"), count("of each of 2 steps:")), (1, 1), "{console}");
    assert_eq!((count("8 of 8 results are identical"), count("found NaN in local forward loss")), (6, 2), "{console}");
    assert!(count("results differ") == 0 && count("found NaN in local gradient norm of bucket 0") == 2, "{console}");
    let (_, console) = run("rerun_state_machine.rerun_mode=report_determinism_stats", Some(1));
    let different: Vec<&str> = console.lines().filter(|line| line.contains("results differ")).collect();
    assert!(!different.is_empty() && different.iter().all(|line| line.contains("Rank 1, ")), "{console}");
    assert!(different[0].contains("8 of 8 results differ, relatively by: mean "), "{console}");
}

/// Holds another learning rate than the other ranks, from an iteration on.
struct OtherRate(u64);

impl Subsystem for OtherRate {
    fn name(&self) -> &str {
        "other rate"
    }

    fn agreement(&self) -> bridge_core::train::Agreement {
        bridge_core::train::Agreement::Symmetric
    }

    fn before_step(&mut self, run: &mut RunContext) -> Result<(), SubsystemError> {
        if run.state.train_state.step + 1 >= self.0 {
            run.hold_learning_rate(0.5);
        }
        Ok(())
    }
}

#[test]
fn a_replica_that_goes_its_own_way_is_named() {
    let run = |ranks: usize, bad: Option<usize>, more: &[&str]| {
        let folder = tempfile::tempdir().unwrap();
        let overrides = [&["train.check_weight_hash_across_dp_replicas_interval=2"], more].concat();
        train(folder.path(), ranks, &overrides, |rank, options| {
            if bad == Some(rank) {
                options.subsystems.push(Box::new(OtherRate(4)));
            }
        })
    };
    let tensor = ["model.tensor_model_parallel_size=2"];
    let gathered = ["ddp.use_distributed_optimizer=true", "ddp.overlap_param_gather=true"];
    for (ranks, more) in [(1, &[][..]), (3, &[][..]), (4, &tensor), (2, &gathered)] {
        let (end, console) = run(ranks, None, more);
        assert_eq!(end.unwrap(), 0, "{more:?}: {console}");
        assert_eq!(console.matches(">>> Weight hashes match after").count(), 3, "{more:?}: {console}");
    }
    for (ranks, bad, named, more) in
        [(3, 1, &[1][..], &[][..]), (2, 1, &[0, 1], &[]), (4, 3, &[1, 3], &["model.tensor_model_parallel_size=2"])]
    {
        let error = run(ranks, Some(bad), more).0.expect_err("replicas differ").to_string();
        assert!(error.starts_with("iteration 4: replicas of the model do not have the same parameters"), "{error}");
        assert!(error.contains("they were equal after iteration 2"), "{error}");
        for rank in 0..ranks {
            assert_eq!(error.contains(&format!("rank {rank}, node ")), named.contains(&rank), "{rank}: {error}");
        }
    }
}
