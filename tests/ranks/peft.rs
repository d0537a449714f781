//! `[peft]`: runs from a base, on any layout, stopped and resumed; checkpoints of adapters alone.

use std::path::Path;

use bridge_core::checkpoint::{Checkpoint, CheckpointStore, Verification};
use bridge_core::config::{RawConfig, RunConfig, World};
use bridge_core::train::{pretrain, rank_timeout, run_on_threads};
use bridge_models::registry;
use bridge_tests::{assert_close, figures_in, records_in, root};

use super::options;

pub(super) const TENSOR: &str = "model.tensor_model_parallel_size=2";
pub(super) const STAGES: &str = "model.pipeline_model_parallel_size=2";
pub(super) const FULL: [&str; 2] =
    ["ddp.use_megatron_fsdp=true", "ddp.data_parallel_sharding_strategy=optim_grads_params"];

pub(super) fn config(folder: &Path, recipe: &str, ranks: usize, overrides: &[&str]) -> RunConfig {
    let log_dir = format!("logger.log_dir={:?}", folder.join("logs"));
    let save = format!("checkpoint.save={:?}", folder.join("saved"));
    let common = [
        log_dir.as_str(),
        &save,
        "train.num_threads=1",
        "train.global_batch_size=4",
        "model.seq_length=32",
        "train.micro_batch_size=1",
        "train.train_iters=4",
        "validation.eval_interval=4",
        "validation.eval_iters=1",
        "dataset.data_sharding=false",
        "logger.log_interval=1",
    ];
    let overrides: Vec<String> = common.iter().chain(overrides).map(|o| (*o).to_owned()).collect();
    let raw = RawConfig::from_file(&root().join("recipes").join(recipe), &overrides, &registry().kinds()).unwrap();
    raw.finalize(&World { size: ranks }).unwrap()
}

pub(super) fn train(config: &RunConfig) -> Result<(), String> {
    let program = |groups| pretrain(config.clone(), options(groups)).map(drop);
    run_on_threads(config, rank_timeout(config), program).map(drop).map_err(|error| error.to_string())
}

/// A base, and its folder.
pub(super) fn base() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    train(&config(folder.path(), "tiny.toml", 1, &["train.train_iters=2"])).unwrap();
    folder
}

pub(super) fn of_base(base: &Path) -> String {
    format!("checkpoint.pretrained_checkpoint={:?}", base.join("saved"))
}

/// Losses of steps and of the evaluation, and gradient norms.
pub(super) fn figures(folder: &Path) -> (Vec<f64>, Vec<f64>) {
    let logs = folder.join("logs");
    let losses = [records_in(&logs, "train"), records_in(&logs, "valid")].concat();
    (losses, figures_in(&logs, "train", "grad_norm"))
}

pub(super) fn checkpoint(folder: &Path, iteration: u64) -> Checkpoint {
    CheckpointStore::open(folder.join("saved")).unwrap().open_iteration(iteration, Verification::Contents).unwrap()
}

#[test]
fn adapters_of_recipes_train_on_every_layout_like_on_one_rank() {
    let base = base();
    let from = of_base(base.path());
    for kind in [&["peft.kind=lora"][..], &["peft.kind=dora", "peft.alpha=8"]] {
        let run = |ranks, overrides: &[&str]| {
            let folder = tempfile::tempdir().unwrap();
            let overrides = [&[from.as_str()], kind, overrides].concat();
            train(&config(folder.path(), "tiny-lora.toml", ranks, &overrides)).unwrap();
            figures(folder.path())
        };
        let (losses, norms) = run(1, &[]);
        assert!(norms.iter().all(|norm| *norm > 0.0), "{norms:?}");
        for (ranks, overrides) in [(2, vec![]), (2, vec![TENSOR]), (2, vec![STAGES]), (2, FULL.to_vec())] {
            let (found, found_norms) = run(ranks, &overrides);
            assert_close(&found, &losses, &format!("{kind:?} {overrides:?}"));
            for (a, b) in found_norms.iter().zip(&norms) {
                assert!((a - b).abs() <= 1e-4 * b, "{kind:?} {overrides:?}: {found_norms:?}, expected {norms:?}");
            }
        }
    }
}

#[test]
fn a_checkpoint_has_the_adapter_alone_and_goes_on_bit_for_bit() {
    let base = base();
    let from = of_base(base.path());
    let dropout = "peft.dropout=0.2";
    for (ranks, layout) in [(1, vec![]), (2, vec![TENSOR]), (2, vec![STAGES]), (2, FULL.to_vec())] {
        let of = |more: &[&'static str]| {
            [&[from.as_str(), dropout, "checkpoint.save_interval=2"], &layout[..], more].concat()
        };
        let (whole, halves) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        train(&config(whole.path(), "tiny-lora.toml", ranks, &of(&[]))).unwrap();
        train(&config(halves.path(), "tiny-lora.toml", ranks, &of(&["train.exit_interval=2"]))).unwrap();
        train(&config(halves.path(), "tiny-lora.toml", ranks, &of(&[]))).unwrap();
        assert_eq!(figures(halves.path()), figures(whole.path()), "{layout:?}");
        let [a, b] = [&whole, &halves].map(|folder| checkpoint(folder.path(), 4));
        let names: Vec<&str> = a.names_in("model").collect();
        assert!(!names.is_empty() && names.iter().all(|name| name.contains(".adapter.")), "{names:?}");
        for name in names {
            assert_eq!(
                a.load_tensor(name).unwrap().bytes(),
                b.load_tensor(name).unwrap().bytes(),
                "{layout:?}: {name}"
            );
        }
    }
}

#[test]
fn modules_in_full_train_beside_the_adapter_on_every_layout() {
    let in_full = "peft.modules_to_save=[\"embedding\", \"lm_head\", \"*.layers.1.input_layernorm\"]";
    for tied in [false, true] {
        let sharing = format!("model.share_embeddings_and_output_weights={tied}");
        let in_full = if tied { "peft.modules_to_save=[\"embed_tokens\"]" } else { in_full };
        let base = tempfile::tempdir().unwrap();
        train(&config(base.path(), "tiny.toml", 1, &["train.train_iters=2", &sharing])).unwrap();
        let from = of_base(base.path());
        let run = |folder: &Path, ranks, overrides: &[&str]| {
            let common = [from.as_str(), &sharing, in_full, "checkpoint.save_interval=2"];
            train(&config(folder, "tiny-lora.toml", ranks, &[&common, overrides].concat())).unwrap();
            figures(folder)
        };
        let alone = tempfile::tempdir().unwrap();
        let (losses, norms) = run(alone.path(), 1, &[]);
        for (ranks, overrides) in [(2, vec![]), (2, vec![TENSOR]), (2, vec![STAGES]), (2, FULL.to_vec())] {
            let (whole, halves) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
            let (found, found_norms) = run(whole.path(), ranks, &overrides);
            assert_close(&found, &losses, &format!("{overrides:?}"));
            for (a, b) in found_norms.iter().zip(&norms) {
                assert!((a - b).abs() <= 1e-4 * b, "{overrides:?}: {found_norms:?}, expected {norms:?}");
            }
            run(halves.path(), ranks, &[&overrides[..], &["train.exit_interval=2"]].concat());
            assert_eq!(run(halves.path(), ranks, &overrides), (found, found_norms), "{overrides:?}");
        }
        let [saved, base] = [checkpoint(alone.path(), 4), checkpoint(base.path(), 2)];
        let names: Vec<&str> = saved.names_in("model").filter(|name| !name.contains(".adapter.")).collect();
        let expected: &[&str] = match tied {
            true => &["embedding.word_embeddings.weight"],
            false => {
                &["decoder.layers.1.input_layernorm.weight", "embedding.word_embeddings.weight", "output_layer.weight"]
            }
        };
        assert_eq!(names, expected);
        for name in names {
            let [after, before] = [&saved, &base].map(|checkpoint| checkpoint.load_tensor(name).unwrap());
            assert_ne!(after.bytes(), before.bytes(), "{name} has not learned");
        }
    }
}

#[test]
fn dropout_is_off_in_evaluation_and_the_same_when_recomputed() {
    let base = base();
    let from = of_base(base.path());
    let run = |overrides: &[&str]| {
        let folder = tempfile::tempdir().unwrap();
        let overrides = [&[from.as_str()], overrides].concat();
        train(&config(folder.path(), "tiny-lora.toml", 1, &overrides)).unwrap();
        let logs = folder.path().join("logs");
        (records_in(&logs, "train"), records_in(&logs, "valid"))
    };
    let recompute =
        ["model.recompute_granularity=full", "model.recompute_method=uniform", "model.recompute_num_layers=1"];
    for settings in [
        &["peft.dropout=0.4"][..],
        &["peft.dropout=0.4", "peft.dropout_position=post"],
        &["peft.dropout=0.4", "peft.kind=dora"],
    ] {
        let dropped = run(settings);
        assert_eq!(run(&[settings, &recompute].concat()), dropped, "{settings:?}");
        let without: Vec<&str> = settings.iter().copied().filter(|s| s.contains("kind")).collect();
        let plain = run(&without);
        assert_ne!(dropped.0[1..], plain.0[1..], "{settings:?}");
        // Without learning, the validation loss is the same with and without dropout.
        let still = |settings: &[&str]| run(&[settings, &["optimizer.lr=0", "optimizer.min_lr=0"]].concat()).1;
        assert_eq!(still(settings), still(&without), "{settings:?}");
    }
}

#[test]
fn another_base_and_names_without_a_layer_are_refused() {
    let base = base();
    let from = of_base(base.path());
    let folder = tempfile::tempdir().unwrap();
    train(&config(folder.path(), "tiny-lora.toml", 1, &[&from, "train.exit_interval=2"])).unwrap();
    let other = tempfile::tempdir().unwrap();
    train(&config(other.path(), "tiny.toml", 1, &["train.train_iters=2", "rng.seed=7"])).unwrap();
    let error = train(&config(folder.path(), "tiny-lora.toml", 1, &[&of_base(other.path())])).unwrap_err();
    assert!(error.contains("expected the base of the adapter"), "{error}");
    // The base of the adapter, and a later checkpoint beside it: the one that is named is taken.
    let later = ["train.train_iters=3", "scheduler.override_opt_param_scheduler=true"];
    train(&config(base.path(), "tiny.toml", 1, &later)).unwrap();
    train(&config(folder.path(), "tiny-lora.toml", 1, &[&from, "train.exit_interval=3"])).unwrap();
    let fresh = tempfile::tempdir().unwrap();
    let typo = "peft.target_modules=[\"linear_qkv\", \"linear_pro\"]";
    let error = train(&config(fresh.path(), "tiny-lora.toml", 1, &[&from, typo])).unwrap_err();
    assert!(error.contains("`linear_pro` names no linear layer"), "{error}");
    let typo = "peft.modules_to_save=[\"lm_heed\"]";
    let error = train(&config(fresh.path(), "tiny-lora.toml", 1, &[&from, typo])).unwrap_err();
    assert!(error.contains("`lm_heed` in modules_to_save names no module"), "{error}");
}

#[test]
fn another_adapter_than_the_checkpoints_is_refused_by_name() {
    let base = base();
    let from = of_base(base.path());
    let folder = tempfile::tempdir().unwrap();
    train(&config(folder.path(), "tiny-lora.toml", 1, &[&from, "train.exit_interval=2"])).unwrap();
    for (change, key, before, now) in [
        ("peft.alpha=32", "peft.alpha", "16", "32"),
        ("peft.dim=4", "peft.dim", "8", "4"),
        ("peft.kind=dora", "peft.kind", "\"lora\"", "\"dora\""),
        ("peft.target_modules=[\"linear_proj\"]", "peft.target_modules", "\"q_proj\"", "[\"linear_proj\"]"),
    ] {
        let error = train(&config(folder.path(), "tiny-lora.toml", 1, &[&from, change])).unwrap_err();
        assert!([key, before, now].iter().all(|text| error.contains(text)), "{change}: {error}");
    }
    // A run cannot resume from a checkpoint of the other type, and an adapter is not a base.
    let error = train(&config(folder.path(), "tiny.toml", 1, &[])).unwrap_err();
    assert!(error.contains("peft") && error.contains("an adapter alone"), "{error}");
    let error = train(&config(base.path(), "tiny-lora.toml", 1, &[&from])).unwrap_err();
    assert!(error.contains("peft") && error.contains("a whole model"), "{error}");
    let fresh = tempfile::tempdir().unwrap();
    let error = train(&config(fresh.path(), "tiny-lora.toml", 1, &[&of_base(folder.path())])).unwrap_err();
    assert!(error.contains("checkpoint.pretrained_checkpoint") && error.contains("an adapter alone"), "{error}");
    // Settings that only affect training may change, and a default may be written out.
    let dropout = ["peft.dropout=0.1", "train.exit_interval=3"];
    train(&config(folder.path(), "tiny-lora.toml", 1, &[&[from.as_str()], &dropout[..]].concat())).unwrap();
}
