//! Gradients on disk (`checkpoint.save_wgrads_interval`, `save_dgrads_interval`): the gradients
//! that the optimizer applies, the same for any layout of ranks.

use std::collections::BTreeMap;
use std::path::Path;

use bridge_core::checkpoint::{Checkpoint, CheckpointStore, Verification};
use bridge_core::config::RunConfig;
use bridge_core::train::{pretrain, rank_timeout, run_on_threads};
use bridge_tests::records_in;

use super::{config, options};

const EMBEDDING: &str = "embedding.word_embeddings.weight";

/// A shape and values.
type Values = (Vec<usize>, Vec<f32>);

fn train(config: &RunConfig) -> Result<(), String> {
    let program = |groups| pretrain(config.clone(), options(groups)).map(drop);
    run_on_threads(config, rank_timeout(config), program).map(drop).map_err(|error| error.to_string())
}

/// A short run that saves gradients at its second step of three.
fn saving(folder: &Path, ranks: usize, overrides: &[&str]) -> RunConfig {
    let save = format!("checkpoint.save={:?}", folder.join("saved"));
    let common = [
        save.as_str(),
        "checkpoint.save_wgrads_interval=2",
        "checkpoint.save_dgrads_interval=2",
        "train.train_iters=3",
        "validation.eval_iters=0",
        "model.seq_length=32",
        "logger.log_interval=1",
    ];
    config(folder, ranks, &[&common, overrides].concat())
}

fn open(root: &Path, iteration: u64) -> Checkpoint {
    CheckpointStore::open(root).unwrap().open_iteration(iteration, Verification::Contents).unwrap()
}

fn tensors(checkpoint: &Checkpoint, group: &str) -> BTreeMap<String, Values> {
    let read = |name: &str| {
        let shape = checkpoint.tensor(name).unwrap().shape.clone();
        let values = checkpoint.load_float_rows(name, 0..shape[0]).unwrap();
        (name.to_owned(), (shape, values))
    };
    checkpoint.names_in(group).map(read).collect()
}

/// Gradients of parameters and of the stream, of step 2.
fn gradients(overrides: &[&str], ranks: usize) -> (BTreeMap<String, Values>, BTreeMap<String, Values>) {
    let folder = tempfile::tempdir().unwrap();
    train(&saving(folder.path(), ranks, overrides)).unwrap();
    let saved = folder.path().join("saved");
    for of in ["wgrads", "dgrads"] {
        let store = CheckpointStore::open(saved.join(of)).unwrap();
        assert_eq!(store.list().unwrap().len(), 1, "{of} of step 2 alone");
    }
    (tensors(&open(&saved.join("wgrads"), 2), "wgrads"), tensors(&open(&saved.join("dgrads"), 2), "dgrads"))
}

fn assert_near(found: &[f32], expected: &[f32], tolerance: f32, what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    let largest = expected.iter().fold(0.0_f32, |largest, value| largest.max(value.abs()));
    assert!(largest > 0.0, "{what}: all are zero");
    for (place, (found, expected)) in found.iter().zip(expected).enumerate() {
        assert!((found - expected).abs() <= tolerance * largest, "{what}[{place}]: {found}, not {expected}");
    }
}

#[test]
fn gradients_of_parameters_are_what_the_optimizer_applies() {
    let folder = tempfile::tempdir().unwrap();
    let rate = 0.5_f32;
    let plain = [
        "optimizer.optimizer=sgd",
        "optimizer.adam_beta2=null",
        "optimizer.sgd_momentum=0.0",
        "optimizer.lr=0.5",
        "optimizer.min_lr=null",
        "optimizer.weight_decay=0.0",
        "optimizer.clip_grad=0.0",
        "scheduler.lr_decay_style=constant",
        "scheduler.lr_warmup_iters=null",
        "checkpoint.save_interval=1",
        "model.calculate_per_token_loss=true",
    ];
    train(&saving(folder.path(), 1, &plain)).unwrap();
    let saved = folder.path().join("saved");
    let (before, after) = (tensors(&open(&saved, 1), "model"), tensors(&open(&saved, 2), "model"));
    let found = tensors(&open(&saved.join("wgrads"), 2), "wgrads");
    assert_eq!(found.keys().collect::<Vec<_>>(), before.keys().collect::<Vec<_>>());
    for (name, (shape, gradient)) in &found {
        assert_eq!(shape, &before[name].0, "{name}");
        for (place, gradient) in gradient.iter().enumerate() {
            let (old, new) = (before[name].1[place], after[name].1[place]);
            let applied = (old - new) / rate;
            // Rounding error of the difference of two float32 parameters.
            let rounding = 2.0 * f32::EPSILON * old.abs().max(new.abs()) / rate;
            let difference = (gradient - applied).abs();
            assert!(difference <= rounding + 1e-5 * gradient.abs(), "{name}[{place}]: {gradient}, applied {applied}");
        }
    }
}

#[test]
fn gradients_are_the_same_on_every_layout() {
    let (weights, streams) = gradients(&[], 1);
    let segments: Vec<_> = streams.keys().map(String::as_str).collect();
    for segment in ["head.input", "layers.0.attention.input", "layers.1.mlp.input"] {
        assert!(segments.contains(&segment), "{segment} in {segments:?}");
    }
    // The gradients of an embedding's rows add up to the gradient of its output.
    let (shape, of_stream) = &streams["layers.0.attention.input"];
    assert_eq!(shape, &[8, 1, 32, 64]);
    let column = |values: &[f32], column: usize| values.iter().skip(column).step_by(64).map(|v| f64::from(*v)).sum();
    let of_tokens: Vec<f64> = (0..64).map(|index| column(of_stream, index)).collect();
    let of_rows: Vec<f64> = (0..64).map(|index| column(&weights[EMBEDDING].1, index)).collect();
    let as_float32 = |sums: &[f64]| sums.iter().map(|sum| *sum as f32).collect::<Vec<_>>();
    assert_near(&as_float32(&of_tokens), &as_float32(&of_rows), 1e-4, "the embedding's columns");

    let tensor = "model.tensor_model_parallel_size=2";
    let full = ["ddp.use_megatron_fsdp=true", "ddp.data_parallel_sharding_strategy=optim_grads_params"];
    let recomputed =
        ["model.recompute_granularity=full", "model.recompute_method=uniform", "model.recompute_num_layers=1"];
    for (ranks, overrides) in [
        (1, recomputed.to_vec()),
        (2, vec![]),
        (2, vec!["ddp.average_in_collective=true"]),
        (2, vec!["optimizer.use_distributed_optimizer=true"]),
        (2, full.to_vec()),
        (2, vec![tensor]),
        (2, vec!["model.context_parallel_size=2"]),
        (4, vec![tensor, "model.sequence_parallel=true", "model.context_parallel_size=2"]),
        (4, vec![tensor, "model.pipeline_model_parallel_size=2"]),
    ] {
        let (found, found_streams) = gradients(&overrides, ranks);
        for (found, expected) in [(&found, &weights), (&found_streams, &streams)] {
            assert_eq!(found.keys().collect::<Vec<_>>(), expected.keys().collect::<Vec<_>>(), "{overrides:?}");
            for (name, (shape, values)) in expected {
                let what = format!("{name} on {ranks} ranks {overrides:?}");
                // Micro-batches and samples together are the samples of the step in order.
                if shape.len() < 4 {
                    assert_eq!(&found[name].0, shape, "{what}");
                }
                assert_near(&found[name].1, values, 2e-4, &what);
            }
        }
    }
}

#[test]
fn a_run_is_the_same_with_them_and_none_begins_from_them() {
    let plain = tempfile::tempdir().unwrap();
    train(&config(plain.path(), 2, &["train.train_iters=4", "validation.eval_iters=0", "logger.log_interval=1"]))
        .unwrap();
    let folder = tempfile::tempdir().unwrap();
    let save = format!("checkpoint.save={:?}", folder.path().join("saved"));
    let dumping = |steps: &str| {
        let overrides = [
            save.as_str(),
            "checkpoint.save_interval=1",
            "checkpoint.most_recent_k=1",
            "checkpoint.async_save=true",
            "checkpoint.save_wgrads_interval=1",
            "checkpoint.save_dgrads_interval=1",
            "validation.eval_iters=0",
            "logger.log_interval=1",
            "train.train_iters=4",
            steps,
        ];
        train(&config(folder.path(), 2, &overrides)).unwrap();
    };
    dumping("train.exit_interval=2");
    dumping("train.exit_interval=null");
    assert_eq!(records_in(&folder.path().join("logs"), "train"), records_in(&plain.path().join("logs"), "train"));
    // All gradients are kept, unlike checkpoints.
    let store = CheckpointStore::open(folder.path().join("saved/wgrads")).unwrap();
    assert_eq!(store.list().unwrap().len(), 4);
    assert_eq!(CheckpointStore::open(folder.path().join("saved")).unwrap().list().unwrap().len(), 1);
    let load = format!("checkpoint.load={:?}", folder.path().join("saved/wgrads"));
    let error = train(&config(plain.path(), 1, &[load.as_str(), "validation.eval_iters=0"])).unwrap_err();
    assert!(error.contains("gradients of weights"), "{error}");
}
