//! `checkpoint.dist_ckpt_strictness`: parameters that a checkpoint lacks, and parameters that a
//! model does not use, at each level.

use std::collections::BTreeMap;
use std::path::Path;

use bridge_core::checkpoint::{CheckpointStore, Verification};
use bridge_core::config::{RunConfig, World, load};
use bridge_core::train::{TrainError, Unmatched, pretrain, rank_timeout, run_on_threads, setup};
use bridge_models::registry;
use bridge_tests::recipe;

use super::{config, options};

fn train(config: &RunConfig) -> Result<(), String> {
    let program = |groups| pretrain(config.clone(), options(groups)).map(drop);
    run_on_threads(config, rank_timeout(config), program).map(drop).map_err(|error| error.to_string())
}

/// A checkpoint of two layers at step 2.
fn base() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let save = format!("checkpoint.save={:?}", folder.path().join("saved"));
    let overrides = [
        "train.train_iters=4",
        "train.exit_interval=2",
        "validation.eval_iters=0",
        "model.seq_length=32",
        save.as_str(),
    ];
    train(&config(folder.path(), 1, &overrides)).unwrap();
    folder
}

/// Run of `layers` layers that starts with the weights of a checkpoint, or resumes from it.
fn from(base: &Path, ranks: usize, key: &str, layers: usize, level: &str, more: &[&str]) -> RunConfig {
    let source = format!("checkpoint.{key}={:?}", base.join("saved"));
    let (layers, level) = (format!("model.num_layers={layers}"), format!("checkpoint.dist_ckpt_strictness={level}"));
    let common = [
        source.as_str(),
        &layers,
        &level,
        "checkpoint.allow_model_changes=['num_layers']",
        "model.seq_length=32",
        "train.train_iters=4",
        "validation.eval_iters=0",
    ];
    config(base, ranks, &[&common, more].concat())
}

/// The parameters of a run after its setup, and the names that did not match.
fn begun(config: &RunConfig) -> Result<(BTreeMap<String, Vec<f32>>, Unmatched), String> {
    let program = |groups| {
        let mut run = setup(config.clone(), options(groups))?;
        run.make_parameters_whole()?;
        let mut values = BTreeMap::new();
        for chunk in run.chunks() {
            chunk.visit_parameters(&mut |name, value| {
                values.insert(name.to_owned(), value.into_data().iter::<f32>().collect::<Vec<_>>());
            });
        }
        Ok::<_, TrainError>((values, run.unmatched().clone()))
    };
    let ranks = run_on_threads(config, rank_timeout(config), program).map_err(|error| error.to_string())?;
    let unmatched = ranks[0].1.clone();
    assert!(ranks.iter().all(|rank| rank.1 == unmatched), "all ranks know the same");
    Ok((ranks.into_iter().flat_map(|rank| rank.0).collect(), unmatched))
}

#[test]
fn parameters_that_a_checkpoint_lacks_are_an_error_or_begin_and_are_named() {
    let base = base();
    let error = begun(&from(base.path(), 1, "pretrained_checkpoint", 3, "assume_ok_unexpected", &[])).unwrap_err();
    assert!(error.contains("layers.2."), "{error}");
    for level in ["raise_unexpected", "raise_all"] {
        let error = begun(&from(base.path(), 2, "pretrained_checkpoint", 3, level, &[])).unwrap_err();
        for name in ["it lacks", "layers.2.mlp", "layers.2.self_attention"] {
            assert!(error.contains(name), "{level}: {name} in {error}");
        }
    }
    let fresh = config(base.path(), 1, &["model.num_layers=3", "model.seq_length=32", "validation.eval_iters=0"]);
    let (fresh, none) = begun(&fresh).unwrap();
    assert_eq!(none, Unmatched::default());
    let saved = CheckpointStore::open(base.path().join("saved")).unwrap();
    let saved = saved.open_iteration(2, Verification::Contents).unwrap();
    let full = ["ddp.use_megatron_fsdp=true", "ddp.data_parallel_sharding_strategy=optim_grads_params"];
    for (level, ranks, more) in [
        ("log_unexpected", 1, vec![]),
        ("log_all", 2, full.to_vec()),
        ("log_unexpected", 3, vec!["model.pipeline_model_parallel_size=3"]),
    ] {
        let global = if ranks == 3 { vec!["train.global_batch_size=6"] } else { vec![] };
        let config = from(base.path(), ranks, "pretrained_checkpoint", 3, level, &[more, global].concat());
        let (values, unmatched) = begun(&config).unwrap();
        let absent: Vec<_> = fresh.keys().filter(|name| name.contains("layers.2.")).cloned().collect();
        assert_eq!((&unmatched.absent, unmatched.unused.len()), (&absent, 0), "{level}");
        assert_eq!(values.len(), fresh.len());
        for (name, values) in values {
            let expected = match absent.contains(&name) {
                true => fresh[&name].clone(),
                false => saved.load_float_rows(&name, 0..saved.tensor(&name).unwrap().shape[0]).unwrap(),
            };
            assert_eq!(values, expected, "{name} at {level} on {ranks} ranks");
        }
    }
}

#[test]
fn parameters_that_a_model_does_not_use_are_left_named_or_an_error() {
    let base = base();
    let of = |level: &str| begun(&from(base.path(), 2, "pretrained_checkpoint", 1, level, &[]));
    for level in ["assume_ok_unexpected", "raise_unexpected", "log_unexpected"] {
        assert_eq!(of(level).unwrap().1, Unmatched::default(), "{level}");
    }
    let (_, unmatched) = of("log_all").unwrap();
    assert!(unmatched.absent.is_empty() && !unmatched.unused.is_empty(), "{unmatched:?}");
    assert!(unmatched.unused.iter().all(|name| name.contains("layers.1.")), "{unmatched:?}");
    let error = of("raise_all").unwrap_err();
    assert!(error.contains("does not use") && error.contains("layers.1."), "{error}");
}

#[test]
fn optimizer_state_goes_with_the_parameters() {
    let base = base();
    // A new parameter has no moments yet, and the run trains.
    for level in ["log_unexpected", "log_all"] {
        train(&from(base.path(), 1, "load", 3, level, &[])).unwrap();
    }
    for level in ["assume_ok_unexpected", "log_unexpected", "raise_unexpected"] {
        let error = train(&from(base.path(), 1, "load", 1, level, &[])).unwrap_err();
        assert!(error.contains("optimizer tensors do not belong"), "{level}: {error}");
    }
    let (_, unmatched) = begun(&from(base.path(), 1, "load", 1, "log_all", &[])).unwrap();
    assert!(unmatched.unused.iter().any(|name| name.starts_with("optimizer.")), "{unmatched:?}");
    train(&from(base.path(), 1, "load", 1, "log_all", &[])).unwrap();
}

#[test]
fn nothing_is_left_at_random_values_without_a_word() {
    for level in ["ignore_all", "return_unexpected", "return_all"] {
        let overrides = [format!("checkpoint.dist_ckpt_strictness={level}")];
        let errors = load(&recipe(), &overrides, &registry().kinds(), &World::SINGLE).unwrap_err();
        assert!(errors.names("checkpoint.dist_ckpt_strictness") && errors.to_string().contains("log_all"), "{errors}");
    }
}
