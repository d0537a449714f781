//! Every family on every layout: each golden folder of the repository is imported and trained on two ranks in several layouts, saved at one and
//! continued at another, with the losses of one rank. A new family takes part as soon as it has a golden folder.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use bridge_tests::{assert_close, program, records_in, root};

/// Steps of a run.
const STEPS: usize = 4;

/// A layout of two ranks: its name, and what asks for it.
struct Layout {
    name: &'static str,
    settings: &'static [&'static str],
}

const TENSOR: Layout = Layout { name: "TP 2", settings: &["--ranks", "2", "model.tensor_model_parallel_size=2"] };
const PIPELINE: Layout = Layout { name: "PP 2", settings: &["--ranks", "2", "model.pipeline_model_parallel_size=2"] };
const CONTEXT: Layout = Layout { name: "CP 2", settings: &["--ranks", "2", "model.context_parallel_size=2"] };
const SHARDED: Layout = Layout {
    name: "full sharding",
    settings: &["--ranks", "2", "ddp.use_megatron_fsdp=true", "ddp.data_parallel_sharding_strategy=optim_grads_params"],
};
const EXPERTS: Layout = Layout { name: "EP 2", settings: &["--ranks", "2", "model.expert_model_parallel_size=2"] };
const ONE: Layout = Layout { name: "one rank", settings: &[] };

fn golden_folders() -> Vec<PathBuf> {
    let entries = std::fs::read_dir(root().join("bridge-models/tests/fixtures/golden")).unwrap();
    let mut folders: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    folders.retain(|folder| folder.join("config.json").exists());
    folders.sort();
    folders
}

fn bridge(folder: &Path, arguments: &[&str]) -> Output {
    Command::new(program()).args(arguments).current_dir(folder).output().expect("bridge starts")
}

/// A golden model as a recipe and a checkpoint; `None` if its family is not known here.
fn imported(golden: &Path) -> Option<tempfile::TempDir> {
    let folder = tempfile::tempdir().unwrap();
    let output = bridge(folder.path(), &["convert", "import", golden.to_str().unwrap(), "base"]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    if output.status.code() == Some(2) && said.contains("model_type: expected one of those that are known") {
        return None;
    }
    assert!(output.status.success(), "{}: {said}", golden.display());
    std::fs::copy(folder.path().join("base/iter_0000000/run_config.toml"), folder.path().join("recipe.toml")).unwrap();
    Some(folder)
}

/// Trains until `steps`, and returns the losses so far.
fn train(folder: &Path, run: &str, layout: &Layout, steps: usize) -> Vec<f64> {
    let own = [format!("name={run}"), format!("checkpoint.save={run}"), format!("train.exit_interval={steps}")];
    let common = [
        "train",
        "recipe.toml",
        "checkpoint.pretrained_checkpoint=base",
        "dataset.kind=mock",
        "model.seq_length=32",
        "train.train_iters=4",
        "train.global_batch_size=4",
        "train.micro_batch_size=1",
        "train.num_threads=1",
        "validation.eval_iters=0",
        "scheduler.lr_warmup_iters=0",
        "optimizer.lr=1e-3",
        "tokenizer.tokenizer_type=NullTokenizer",
        "logger.progress=none",
        "logger.log_interval=1",
    ];
    let own: Vec<&str> = own.iter().map(String::as_str).collect();
    let output = bridge(folder, &[&common[..], &own, layout.settings].concat());
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{run}, {}: {said}", layout.name);
    records_in(&folder.join("runs").join(run), "train")
}

/// Trains half of the steps at one layout, the rest at another, and compares with one rank.
fn check(golden: &Path, pairs: &[(&Layout, &Layout)]) {
    let Some(folder) = imported(golden) else { return };
    let expected = train(folder.path(), "one", &ONE, STEPS);
    assert_eq!(expected.len(), STEPS);
    let name = golden.file_name().unwrap().to_string_lossy().into_owned();
    for (index, (first, second)) in pairs.iter().enumerate() {
        let run = format!("run{index}");
        train(folder.path(), &run, first, STEPS / 2);
        let losses = train(folder.path(), &run, second, STEPS);
        assert_close(&losses, &expected, &format!("{name}: {} -> {}", first.name, second.name));
    }
}

fn has_experts(golden: &Path) -> bool {
    let config = std::fs::read_to_string(golden.join("config.json")).unwrap();
    ["num_local_experts", "num_experts", "n_routed_experts"].iter().any(|key| config.contains(&format!("\"{key}\"")))
}

#[test]
fn every_family_trains_on_every_layout_and_goes_on_at_another() {
    for golden in golden_folders() {
        check(&golden, &[(&TENSOR, &PIPELINE), (&CONTEXT, &SHARDED), (&PIPELINE, &TENSOR)]);
        if has_experts(&golden) {
            check(&golden, &[(&EXPERTS, &ONE), (&SHARDED, &EXPERTS)]);
        }
    }
}
