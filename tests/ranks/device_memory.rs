//! Ranks that exchange the memory of a device that they share, here the CPU's, against ranks that
//! exchange through copies in host memory: the same losses and norms to the bit, the same calls and
//! bytes.

use std::sync::Arc;

use bridge_core::config::{RunConfig, World, load};
use bridge_core::train::{pretrain, rank_timeout, run_on_threads_with};
use bridge_dist::comm::Group;
use bridge_dist::comm::counting::{CountingCommunicator, Counts, Ledger};
use bridge_dist::comm::thread::Devices;
use bridge_models::registry;
use bridge_tests::{figures_in, records_in, root};

use super::{config, options};

const SHORT: [&str; 3] = ["train.train_iters=3", "validation.eval_interval=3", "validation.eval_iters=1"];
const OPTIMIZER: &str = "ddp.use_distributed_optimizer=true";
const OVERLAP: [&str; 3] = ["ddp.overlap_grad_reduce=true", "ddp.overlap_param_gather=true", "ddp.bucket_size=20011"];
const TENSOR: [&str; 2] = ["model.tensor_model_parallel_size=2", "model.sequence_parallel=true"];
const HALF: &str = "mixed_precision={fp16 = true, initial_loss_scale = 1024.0}";
const FULL: [&str; 2] = ["ddp.use_megatron_fsdp=true", "ddp.data_parallel_sharding_strategy=optim_grads_params"];

/// Losses, norms and the counts of each rank.
fn train(devices: Devices, make: &dyn Fn(&std::path::Path) -> RunConfig) -> (Vec<f64>, Vec<f64>, Vec<Counts>) {
    let folder = tempfile::tempdir().unwrap();
    let config = make(folder.path());
    let ledgers: Vec<Ledger> = (0..config.parallel.world_size).map(|_| Ledger::default()).collect();
    let wrap = |world: Group| -> Group {
        let ledger = ledgers[world.rank()].clone();
        Arc::new(CountingCommunicator::new(world, ledger))
    };
    let program = |groups| pretrain(config.clone(), options(groups)).map(drop);
    run_on_threads_with(devices, &config, rank_timeout(&config), wrap, program).unwrap();
    let logs = folder.path().join("logs");
    let losses = [records_in(&logs, "train"), records_in(&logs, "valid")].concat();
    (losses, figures_in(&logs, "train", "grad_norm"), ledgers.iter().map(Ledger::counts).collect())
}

#[track_caller]
fn check_as(what: &str, make: &dyn Fn(&std::path::Path) -> RunConfig) {
    let (expected, found) = (train(Devices::Apart, make), train(Devices::Shared, make));
    assert!(expected.0.len() == 5 && expected.1.len() == 3, "{what}: {expected:?}");
    assert_eq!(found.0, expected.0, "{what}: losses");
    assert_eq!(found.1, expected.1, "{what}: norms");
    // Seconds between looks for a signal are not the same in two runs, so such figures of the world
    // are left out.
    let of_groups = |counts: Vec<Counts>| -> Vec<Counts> {
        let of_one = |counts: Counts| counts.into_iter().filter(|((group, _), _)| group != "world").collect();
        counts.into_iter().map(of_one).collect()
    };
    let (found, expected) = (of_groups(found.2), of_groups(expected.2));
    assert!(expected.iter().all(|counts| !counts.is_empty()), "{what}");
    assert_eq!(found, expected, "{what}: calls");
}

#[track_caller]
fn check(ranks: usize, overrides: &[&str]) {
    let all = [&SHORT[..], overrides].concat();
    check_as(&format!("{ranks} ranks, {overrides:?}"), &|folder| config(folder, ranks, &all));
}

#[test]
fn replicas_train_alike() {
    check(2, &[]);
    check(2, &["ddp.average_in_collective=true", "mixed_precision=bf16_mixed"]);
    check(4, &[&OVERLAP[..1], &OVERLAP[2..]].concat());
}

#[test]
fn sharded_optimizers_train_alike() {
    check(2, &[&[OPTIMIZER], &OVERLAP[..]].concat());
    check(4, &[OPTIMIZER, "ddp.num_distributed_optimizer_instances=2", HALF]);
    check(2, &FULL);
}

#[test]
fn models_cut_over_ranks_train_alike() {
    check(2, &TENSOR);
    check(4, &[&TENSOR[..], &[OPTIMIZER, "mixed_precision=bf16_mixed", "model.qk_layernorm=true"]].concat());
    check(2, &["model.context_parallel_size=2"]);
    let tied = "model.share_embeddings_and_output_weights=true";
    check(4, &["model.pipeline_model_parallel_size=2", HALF, tied]);
}

#[test]
fn experts_train_alike() {
    check_as("experts", &|folder| {
        let log_dir = format!("logger.log_dir={:?}", folder.join("logs"));
        let sizes = ["train.num_threads=1", "train.micro_batch_size=1", "train.global_batch_size=4"];
        let experts = ["model.expert_model_parallel_size=2", OPTIMIZER];
        let all = [&[log_dir.as_str()], &sizes[..], &SHORT, &experts].concat();
        let overrides: Vec<String> = all.into_iter().map(str::to_owned).collect();
        load(&root().join("recipes/tiny-moe.toml"), &overrides, &registry().kinds(), &World { size: 4 }).unwrap()
    });
}
