//! Runs of a model with an adapter: frozen parameters do not change on any layout, and a run
//! resumes at another layout.

use std::path::Path;
use std::sync::Arc;

use bridge_core::checkpoint::{Checkpoint, CheckpointStore, Verification};
use bridge_core::config::{RawConfig, RunConfig, World};
use bridge_core::model::Initial;
use bridge_core::plan::{PlanOptions, plan};
use bridge_core::testing::LowRank;
use bridge_core::train::{
    Console, Registry, RunOptions, measure, measuring_recipe, pretrain, rank_timeout, run_on_threads,
};
use bridge_models::registry;
use bridge_tests::{assert_close, figures_in, records_in, root};

use super::{Lines, options};

const FULL: [&str; 2] = ["ddp.use_megatron_fsdp=true", "ddp.data_parallel_sharding_strategy=optim_grads_params"];
const SHARDED: [&str; 3] =
    ["ddp.use_distributed_optimizer=true", "ddp.overlap_grad_reduce=true", "ddp.bucket_size=9001"];

/// Branches at all linear layers; of the model only the norms are trained.
fn adapted() -> Registry {
    let mut registry = registry();
    let adapter = LowRank { start: Initial::Normal(0.1), trains: |name| name.contains("norm"), ..LowRank::default() };
    registry.models.adapt(Arc::new(adapter));
    registry
}

fn recipe(folder: &Path, recipe: &str, overrides: &[&str]) -> RawConfig {
    let log_dir = format!("logger.log_dir={:?}", folder.join("logs"));
    let save = format!("checkpoint.save={:?}", folder.join("saved"));
    let sizes = ["train.num_threads=1", "train.global_batch_size=8", "train.micro_batch_size=1", "train.train_iters=6"];
    let evaluation = ["validation.eval_interval=6", "validation.eval_iters=1", "dataset.data_sharding=false"];
    let common = [&[log_dir.as_str(), save.as_str()], &sizes[..], &evaluation].concat();
    let overrides: Vec<String> = common.iter().chain(overrides).map(|o| (*o).to_owned()).collect();
    RawConfig::from_file(&root().join("recipes").join(recipe), &overrides, &adapted().kinds()).unwrap()
}

fn config(folder: &Path, name: &str, ranks: usize, overrides: &[&str]) -> RunConfig {
    recipe(folder, name, overrides).finalize(&World { size: ranks }).unwrap()
}

fn train(config: &RunConfig) {
    let program = |groups| {
        let options = RunOptions { registry: adapted(), ..options(groups) };
        pretrain(config.clone(), options).map(drop)
    };
    run_on_threads(config, rank_timeout(config), program).unwrap();
}

/// Losses of the steps and of the evaluation, and gradient norms.
fn figures(folder: &Path) -> [Vec<f64>; 3] {
    let logs = folder.join("logs");
    [records_in(&logs, "train"), records_in(&logs, "valid"), figures_in(&logs, "train", "grad_norm")]
}

fn checkpoint(folder: &Path, iteration: u64) -> Checkpoint {
    CheckpointStore::open(folder.join("saved")).unwrap().open_iteration(iteration, Verification::Contents).unwrap()
}

#[track_caller]
fn assert_same(found: &[Vec<f64>; 3], expected: &[Vec<f64>; 3], what: &str) {
    assert_close(&found[0], &expected[0], what);
    assert_close(&found[1], &expected[1], what);
    for (a, b) in found[2].iter().zip(&expected[2]) {
        assert!((a - b).abs() <= 1e-4 * b, "{what}: gradient norm {a}, expected {b}");
    }
}

fn check_layouts(name: &str, layouts: &[(usize, Vec<&str>)]) {
    let one = tempfile::tempdir().unwrap();
    train(&config(one.path(), name, 1, &[]));
    let expected = figures(one.path());
    assert!(expected[0][5] < expected[0][0], "adapters learn: {:?}", expected[0]);
    for (ranks, overrides) in layouts {
        let folder = tempfile::tempdir().unwrap();
        train(&config(folder.path(), name, *ranks, overrides));
        assert_same(&figures(folder.path()), &expected, &format!("{name} on {ranks} ranks, {overrides:?}"));
    }
}

#[test]
fn adapters_train_on_every_layout_like_on_one_rank() {
    let tensor = "model.tensor_model_parallel_size=2";
    let stages = "model.pipeline_model_parallel_size=2";
    check_layouts(
        "tiny.toml",
        &[
            (2, SHARDED.to_vec()),
            (2, FULL.to_vec()),
            (2, vec![tensor]),
            (2, vec![tensor, "model.sequence_parallel=true"]),
            (2, vec![stages]),
            (2, vec![stages, "model.pipeline_schedule=zb_h1"]),
            (4, [&[tensor][..], &FULL].concat()),
            (
                4,
                [
                    &[tensor, stages][..],
                    &[
                        "model.recompute_granularity=full",
                        "model.recompute_method=uniform",
                        "model.recompute_num_layers=1",
                    ],
                ]
                .concat(),
            ),
        ],
    );
}

#[test]
fn adapters_of_experts_train_on_every_layout_like_on_one_rank() {
    let (tensor, sequence) = ("model.tensor_model_parallel_size=2", "model.sequence_parallel=true");
    let (expert, whole) = ("model.expert_model_parallel_size=2", "model.expert_tensor_parallel_size=1");
    check_layouts(
        "tiny-moe.toml",
        &[
            (2, vec![expert]),
            (2, vec![tensor]),
            (2, vec![tensor, sequence, expert, whole]),
            (4, [&[expert][..], &FULL].concat()),
        ],
    );
}

#[test]
fn what_is_frozen_is_saved_unchanged_and_a_run_goes_on_at_another_layout() {
    let whole = tempfile::tempdir().unwrap();
    let saves = "checkpoint.save_interval=3";
    train(&config(whole.path(), "tiny.toml", 1, &[saves]));
    let expected = figures(whole.path());
    let tensor = vec!["model.tensor_model_parallel_size=2", "model.sequence_parallel=true"];
    let stages = vec!["model.pipeline_model_parallel_size=2"];
    for (first, second) in [(&tensor, FULL.to_vec()), (&FULL.to_vec(), stages), (&SHARDED.to_vec(), tensor.clone())] {
        let folder = tempfile::tempdir().unwrap();
        let what = format!("{first:?}, then {second:?}");
        train(&config(folder.path(), "tiny.toml", 2, &[&first[..], &[saves, "train.exit_interval=3"]].concat()));
        train(&config(folder.path(), "tiny.toml", 2, &[&second[..], &[saves]].concat()));
        assert_same(&figures(folder.path()), &expected, &what);
        let [before, after] = [3, 6].map(|iteration| checkpoint(folder.path(), iteration));
        let mut frozen = 0;
        for name in before.names_in("model") {
            let is_trained = name.contains(".adapter.") || name.contains("norm");
            let [a, b] = [&before, &after].map(|checkpoint| checkpoint.load_tensor(name).unwrap());
            assert_eq!(a.bytes() != b.bytes(), is_trained, "{what}: {name}");
            frozen += usize::from(!is_trained);
        }
        // Two tables, and four weights of each of two layers.
        assert_eq!(frozen, 2 + 2 * 4, "{what}");
        let states: Vec<&str> = before.names_in("optimizer").collect();
        assert!(states.iter().any(|name| name.ends_with(".linear_qkv.adapter.b")), "{states:?}");
        assert!(states.iter().all(|name| name.contains(".adapter.") || name.contains("norm")), "{states:?}");
    }
}

/// Only the last layer is adapted: the first stage has nothing to train, and on one rank backward
/// ends before its first layer.
#[test]
fn a_first_stage_that_is_frozen_has_no_backward() {
    let run = |ranks, overrides: &[&str]| {
        let folder = tempfile::tempdir().unwrap();
        let mut registry = registry();
        let adapter = LowRank { adapts: |name| name.contains("layers.1."), ..LowRank::default() };
        registry.models.adapt(Arc::new(adapter));
        let config = config(folder.path(), "tiny.toml", ranks, overrides);
        let program = |groups| {
            let options = RunOptions { registry: registry.clone(), ..options(groups) };
            pretrain(config.clone(), options).map(drop)
        };
        run_on_threads(&config, rank_timeout(&config), program).unwrap();
        figures(folder.path())
    };
    let expected = run(1, &[]);
    let full = ["model.recompute_granularity=full", "model.recompute_method=uniform", "model.recompute_num_layers=1"];
    assert_same(&run(1, &full), &expected, "recomputed");
    assert_same(&run(2, &["model.pipeline_model_parallel_size=2"]), &expected, "two stages");
    assert_same(&run(2, &FULL), &expected, "sharded");
}

/// Planned figures are measured: frozen parameters are held, and gathered if they are sharded; they
/// have neither state nor reductions.
#[test]
fn a_plan_knows_what_is_frozen() {
    for (ranks, overrides) in [(1, vec![]), (2, SHARDED.to_vec()), (2, FULL.to_vec())] {
        let folder = tempfile::tempdir().unwrap();
        let recipe = recipe(folder.path(), "tiny.toml", &overrides);
        let planned = recipe.finalize(&World { size: ranks }).unwrap();
        let planned = plan(&planned, &adapted().models, &PlanOptions::default()).unwrap();
        // Five norms, and at each layer the parameters of branches of rank three at four matrices.
        let branches = 3 * (64 + 128 + 64 + 64 + 64 + 2 * 192 + 192 + 64);
        assert_eq!(planned.parameters.trained, 5 * 64 + 2 * branches);
        assert_eq!(planned.parameters.total, 164_160 + 2 * branches);
        let short = measuring_recipe(&recipe, planned.batch.padded_vocab_size as usize, None, folder.path());
        let short = short.finalize(&World { size: ranks }).unwrap();
        let options = |groups| RunOptions { registry: adapted(), ..options(groups) };
        let comparison = planned.compare(&measure(&short, None, options).unwrap(), None);
        assert!(comparison.matches, "{ranks} ranks, {overrides:?}: {comparison:?}");
    }
}

#[test]
fn a_run_says_how_many_parameters_it_trains() {
    let folder = tempfile::tempdir().unwrap();
    let lines = Lines::default();
    let config = config(folder.path(), "tiny.toml", 1, &["train.train_iters=1"]);
    let options = RunOptions { console: Console::Writer(Box::new(lines.clone())), ..RunOptions::new(adapted()) };
    pretrain(config, options).unwrap();
    let said = lines.text();
    assert!(said.contains("parameters: 170,304, of which 6,464 are trained"), "{said}");
}
