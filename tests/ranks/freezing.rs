//! `model.freeze_parameters`: frozen parameters keep their bits, and trained parameters get the
//! same gradients as without freezing, on any layout.

use std::path::Path;

use bridge_core::checkpoint::{Checkpoint, CheckpointStore, Verification};
use bridge_core::train::{pretrain, rank_timeout, run_on_threads};
use bridge_tests::{assert_close, figures_in, records_in};

use super::{config, options};

/// The table of words, the first layer and all norms.
const FREEZE: &str = "model.freeze_parameters=['embedding.*', 'decoder.layers.0.*', '*norm*']";

fn is_frozen(name: &str) -> bool {
    name.starts_with("embedding.") || name.contains("layers.0.") || name.contains("norm")
}

fn train(folder: &Path, ranks: usize, overrides: &[&str]) -> Result<(), String> {
    let save = format!("checkpoint.save={:?}", folder.join("saved"));
    let common = [save.as_str(), "validation.eval_iters=0", "model.seq_length=32", "train.train_iters=6"];
    let config = config(folder, ranks, &[&common, overrides].concat());
    run_on_threads(&config, rank_timeout(&config), |groups| pretrain(config.clone(), options(groups)).map(drop))
        .map(drop)
        .map_err(|error| error.to_string())
}

fn checkpoint(folder: &Path, iteration: u64) -> Checkpoint {
    CheckpointStore::open(folder.join("saved")).unwrap().open_iteration(iteration, Verification::Contents).unwrap()
}

fn run(ranks: usize, overrides: &[&str]) -> (tempfile::TempDir, [Vec<f64>; 2]) {
    let folder = tempfile::tempdir().unwrap();
    train(folder.path(), ranks, overrides).unwrap();
    let logs = folder.path().join("logs");
    let figures = [records_in(&logs, "train"), figures_in(&logs, "train", "grad_norm")];
    (folder, figures)
}

/// One step of plain gradient descent is the same for trained parameters, and leaves the rest
/// unchanged.
#[test]
fn what_is_trained_has_the_gradients_that_it_has_without() {
    let plain = [
        "optimizer.optimizer=sgd",
        "optimizer.adam_beta2=0.999",
        "optimizer.clip_grad=0.0",
        "optimizer.weight_decay=0.0",
    ];
    let schedule = ["optimizer.lr=0.1", "optimizer.min_lr=null", "scheduler.lr_decay_style=constant"];
    let steps = ["scheduler.lr_warmup_iters=0", "train.train_iters=2", "checkpoint.save_interval=1"];
    let common = [&plain[..], &schedule, &steps].concat();
    let step = |freeze: &[&str]| run(1, &[&common[..], freeze].concat());
    let ((all, _), (part, figures)) = (step(&[]), step(&[FREEZE]));
    let [all, first, second] =
        [(&all, 1), (&part, 1), (&part, 2)].map(|(folder, iteration)| checkpoint(folder.path(), iteration));
    let mut counts = [0, 0];
    for name in first.names_in("model") {
        let bytes = [&all, &first, &second].map(|checkpoint| checkpoint.load_tensor(name).unwrap().bytes().to_vec());
        let frozen = is_frozen(name);
        counts[usize::from(frozen)] += 1;
        assert_eq!(bytes[0] == bytes[1], !frozen, "{name}: the first step");
        assert_eq!(bytes[1] == bytes[2], frozen, "{name}: the second step");
    }
    // Four products of the last layer and the output layer; the table, the first layer and three
    // norms.
    assert_eq!(counts, [5, 1 + 4 + 5]);
    assert!(figures[1].iter().all(|norm| *norm > 0.0));
    // AdamW keeps no state of frozen parameters.
    let (folder, _) = run(1, &[FREEZE, "train.train_iters=1"]);
    let saved = checkpoint(folder.path(), 1);
    let states: Vec<&str> = saved.names_in("optimizer").collect();
    assert!(states.len() >= 2 * counts[0] && states.iter().all(|name| !is_frozen(name)), "{states:?}");
}

#[test]
fn ranks_that_freeze_train_like_one() {
    let (_one, expected) = run(1, &[FREEZE]);
    let tensor = "model.tensor_model_parallel_size=2";
    let full = ["ddp.use_megatron_fsdp=true", "ddp.data_parallel_sharding_strategy=optim_grads_params"];
    for (ranks, layout) in [
        (2, &[tensor, "model.sequence_parallel=true"][..]),
        (2, &["model.pipeline_model_parallel_size=2"]),
        (2, &["ddp.use_distributed_optimizer=true", "ddp.overlap_grad_reduce=true", "ddp.bucket_size=9001"]),
        (2, &full),
        (4, &[tensor, full[0], full[1]]),
        (1, &["model.recompute_granularity=full", "model.recompute_method=uniform", "model.recompute_num_layers=1"]),
    ] {
        let (_folder, found) = run(ranks, &[&[FREEZE], layout].concat());
        assert_close(&found[0], &expected[0], &format!("{ranks} ranks, {layout:?}"));
        for (a, b) in found[1].iter().zip(&expected[1]) {
            assert!((a - b).abs() <= 1e-4 * b, "{layout:?}: gradient norm {a}, expected {b}");
        }
    }
}

#[test]
fn a_run_that_freezes_goes_on_bit_for_bit() {
    let (whole, _) = run(1, &[FREEZE]);
    let folder = tempfile::tempdir().unwrap();
    for part in [&["train.exit_interval=3"][..], &[]] {
        train(folder.path(), 1, &[&[FREEZE], part].concat()).unwrap();
    }
    let [expected, found] = [&whole, &folder].map(|folder| checkpoint(folder.path(), 6));
    let (mut names, mut others) = (expected.names().peekable(), found.names());
    assert!(names.peek().is_some());
    for name in names {
        assert_eq!(Some(name), others.next());
        let [a, b] = [&expected, &found].map(|checkpoint| checkpoint.load_tensor(name).unwrap());
        assert!(a.bytes() == b.bytes(), "{name}");
    }
}

#[test]
fn names_of_nothing_and_of_everything_are_refused() {
    for (patterns, expected) in [
        ("['embeding.*']", "`embeding.*` is the name of no parameter"),
        ("['*.layers.2.*']", "`*.layers.2.*` is the name of no parameter"),
        ("['*']", "leaves no parameter to train"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let error = train(folder.path(), 2, &[&format!("model.freeze_parameters={patterns}")]).unwrap_err();
        assert!(error.contains("model.freeze_parameters") && error.contains(expected), "{error}");
        let saved =
            CheckpointStore::open(folder.path().join("saved")).unwrap().open_iteration(0, Verification::Contents);
        assert!(saved.is_err(), "nothing is saved");
    }
}
