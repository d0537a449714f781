//! Every family on every layout: each golden folder of the repository is imported and trained on
//! two ranks, a step at one layout, saved and continued at the next, with the losses of one rank. A
//! new family takes part as soon as it has a golden folder.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Mutex;

use bridge_tests::{program, records_in, root};

/// A layout of two ranks: its name and its overrides.
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

/// Golden models that are trained at the same time.
const NUM_WORKERS: usize = 3;

/// Golden models of the repository, and those beside it of families that it has none of.
fn golden_folders() -> Vec<PathBuf> {
    let in_folder = |folder: PathBuf| {
        let entries = std::fs::read_dir(folder).into_iter().flatten().map(|entry| entry.unwrap().path());
        let mut folders: Vec<PathBuf> = entries.filter(|folder| folder.join("config.json").exists()).collect();
        folders.sort();
        folders
    };
    let model_type = |folder: &PathBuf| {
        let settings = std::fs::read_to_string(folder.join("config.json")).unwrap();
        bridge_models::huggingface::parse_settings(&settings).unwrap()["model_type"].clone()
    };
    let is_known = |folder: &PathBuf| {
        model_type(folder).as_str().is_some_and(|name| bridge_models::families::with_model_type(name).is_some())
    };
    let mut folders = in_folder(root().join("bridge-models/tests/fixtures/golden"));
    let own: Vec<serde_json::Value> = folders.iter().map(model_type).collect();
    let others = in_folder(root().join("../shared/golden2026")).into_iter();
    folders.extend(others.filter(|folder| is_known(folder) && !own.contains(&model_type(folder))));
    folders
}

fn bridge(folder: &Path, arguments: &[&str]) -> Output {
    Command::new(program()).args(arguments).current_dir(folder).output().expect("bridge starts")
}

/// A golden model as a recipe and a checkpoint.
fn imported(golden: &Path) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let output = bridge(folder.path(), &["convert", "import", golden.to_str().unwrap(), "base"]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{}: {said}", golden.display());
    std::fs::copy(folder.path().join("base/iter_0000000/run_config.toml"), folder.path().join("recipe.toml")).unwrap();
    folder
}

/// Settings of every run.
const COMMON: [&str; 13] = [
    "checkpoint.pretrained_checkpoint=base",
    "train.train_iters=6",
    "train.global_batch_size=4",
    "train.micro_batch_size=1",
    "train.num_threads=1",
    "validation.eval_iters=0",
    "scheduler.lr_warmup_iters=0",
    "optimizer.lr=1e-3",
    "tokenizer.tokenizer_type=NullTokenizer",
    "model.hidden_dropout=0.0",
    "model.attention_dropout=0.0",
    "logger.progress=none",
    "logger.log_interval=1",
];

/// The override for a tokenizer that fits the model of a recipe. It has one more token, the end of
/// a document.
fn vocabulary(recipe: &str) -> String {
    let size = recipe.lines().find_map(|line| line.strip_prefix("vocab_size = ")).expect("a model has a vocabulary");
    format!("tokenizer.vocab_size={}", size.parse::<usize>().unwrap() - 1)
}

/// Trains until `steps`, and returns the losses so far, or the error output.
fn train(folder: &Path, run: &str, layout: &Layout, steps: usize) -> Result<Vec<f64>, String> {
    let recipe = std::fs::read_to_string(folder.join("recipe.toml")).unwrap();
    let own = [
        format!("name={run}"),
        format!("checkpoint.save={run}"),
        format!("train.exit_interval={steps}"),
        vocabulary(&recipe),
    ];
    let own: Vec<&str> = own.iter().map(String::as_str).collect();
    let data: &[&str] = match recipe.contains("kind = \"t5\"") {
        true => &["dataset.kind=mock_t5", "dataset.num_sentinels=20"],
        false => &["dataset.kind=mock"],
    };
    let output = bridge(folder, &[&["train", "recipe.toml"][..], &COMMON[..], &own, data, layout.settings].concat());
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    match output.status.success() {
        true => Ok(records_in(&folder.join("runs").join(run), "train")),
        false => Err(format!("{run}, {}: {said}", layout.name)),
    }
}

/// Layouts that a golden model cannot have, and text of the refusal.
const REFUSED: [(&str, &str, &str); 20] = [
    ("bamba", "TP 2", "model.mamba_num_groups: expected a multiple"),
    ("bamba", "CP 2", "the state of a Mamba layer goes through the whole sequence"),
    ("falcon_h1", "TP 2", "model.mamba_num_groups: expected a multiple"),
    ("falcon_h1", "CP 2", "the state of a Mamba layer goes through the whole sequence"),
    ("granitemoehybrid", "CP 2", "the state of a Mamba layer goes through the whole sequence"),
    ("jamba", "CP 2", "the state of a Mamba layer goes through the whole sequence"),
    ("lfm2", "CP 2", "the state of a short convolution goes through the whole sequence"),
    ("lfm2_moe", "CP 2", "the state of a short convolution goes through the whole sequence"),
    ("lfm3", "CP 2", "the state of a short convolution goes through the whole sequence"),
    ("mamba2", "CP 2", "the state of a Mamba layer goes through the whole sequence"),
    ("nemotron_h", "CP 2", "the state of a Mamba layer goes through the whole sequence"),
    ("nemotron_h_latent", "CP 2", "the state of a Mamba layer goes through the whole sequence"),
    ("nemotron_h_dense", "TP 2", "model.num_attention_heads: must be divisible"),
    ("nemotron_h_dense", "CP 2", "the state of a Mamba layer goes through the whole sequence"),
    ("phi", "TP 2", "model.num_attention_heads: must be divisible"),
    ("stablelm", "TP 2", "model.num_attention_heads: must be divisible"),
    ("zamba2", "CP 2", "the state of a Mamba layer goes through the whole sequence"),
    ("zamba2", "PP 2", "layers 1 and 3 share a block"),
    ("zamba2", "TP 2", "model.mamba_num_groups: expected a multiple"),
    ("t5", "CP 2", "model.context_parallel_size: model.kind = \"t5\" does not have this setting"),
];

/// Text of the refusal of two pipeline stages, for a recipe with an odd number of layers.
fn odd_layers(folder: &Path, layout: &Layout) -> Option<&'static str> {
    let recipe = std::fs::read_to_string(folder.join("recipe.toml")).unwrap();
    let layers = recipe.lines().find_map(|line| line.strip_prefix("num_layers = ")?.parse::<usize>().ok());
    let is_odd = layers.is_some_and(|layers| !layers.is_multiple_of(2));
    (is_odd && layout.name == PIPELINE.name).then_some("must be divisible")
}

/// The layouts that a run of the imported model goes through. The loss at one shows the update at
/// the one before it, so the first comes again at the end.
fn layouts(folder: &Path) -> Vec<&'static Layout> {
    let recipe = std::fs::read_to_string(folder.join("recipe.toml")).unwrap();
    let experts = recipe.contains("num_moe_experts").then_some(&EXPERTS);
    [&TENSOR, &PIPELINE, &CONTEXT].into_iter().chain(experts).chain([&SHARDED, &TENSOR]).collect()
}

/// Trains a step at each layout from the checkpoint of the one before, and compares with one rank.
/// Returns the problems.
fn check(golden: &Path) -> Vec<String> {
    let folder = imported(golden);
    let name = golden.file_name().unwrap().to_string_lossy().into_owned();
    let layouts = layouts(folder.path());
    let expected = match train(folder.path(), "one", &ONE, layouts.len()) {
        Ok(losses) => losses,
        Err(said) => return vec![format!("{name}: {said}")],
    };
    assert_eq!(expected.len(), layouts.len());
    let (mut wrong, mut steps) = (Vec::new(), 0);
    for layout in layouts {
        let losses = train(folder.path(), "run", layout, steps + 1);
        let refusal = REFUSED.iter().find(|(of, at, _)| *of == name && *at == layout.name);
        let refusal = refusal.map(|(.., part)| *part).or_else(|| odd_layers(folder.path(), layout));
        match (losses, refusal) {
            (Ok(losses), None) => {
                steps += 1;
                let close = |(a, b): (&f64, &f64)| (a - b).abs() <= 1e-5 * b.abs();
                if losses.len() != steps || !losses.iter().zip(&expected).all(close) {
                    wrong.push(format!("{name}: after {}: {losses:?}, expected {expected:?}", layout.name));
                }
            }
            (Err(said), Some(part)) if said.contains(part) => {}
            (Ok(_), Some(_)) => wrong.push(format!("{name}, {}: is not refused: take it from the list", layout.name)),
            (Err(said), _) => wrong.push(format!("{name}: {said}")),
        }
    }
    wrong
}

#[test]
fn every_family_trains_on_every_layout_and_goes_on_at_another() {
    let folders = Mutex::new(golden_folders().into_iter());
    let next = || folders.lock().unwrap().next();
    let check_some = || std::iter::from_fn(next).flat_map(|golden| check(&golden)).collect::<Vec<String>>();
    // Runs of one rank, imports and starts use one core.
    let wrong: Vec<String> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..NUM_WORKERS).map(|_| scope.spawn(check_some)).collect();
        workers.into_iter().flat_map(|worker| worker.join().expect("a check ends")).collect()
    });
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_run_starts_from_the_folder_itself() {
    let golden = root().join("bridge-models/tests/fixtures/golden/llama");
    let folder = imported(&golden);
    let expected = train(folder.path(), "imported", &ONE, 2).unwrap();
    std::fs::remove_dir_all(folder.path().join("base")).unwrap();
    bridge_tests::copy(&golden, &folder.path().join("base"));
    for (run, layout) in [("folder", &ONE), ("pipeline", &PIPELINE), ("sharded", &SHARDED)] {
        let losses = train(folder.path(), run, layout, 2).unwrap();
        assert!(
            losses.iter().zip(&expected).all(|(a, b)| (a - b).abs() <= 1e-5 * b),
            "{run}: {losses:?}, {expected:?}"
        );
        assert!(folder.path().join("runs").join(run).join("imported/iter_0000000").is_dir(), "{run}");
    }
    let size = vocabulary(&std::fs::read_to_string(folder.path().join("recipe.toml")).unwrap());
    let own = ["dataset.kind=mock", "name=new", &size];
    let check = [&["config", "check", "recipe.toml"][..], &COMMON[..], &own].concat();
    let checked = bridge(folder.path(), &check);
    assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stderr));
    assert!(!folder.path().join("runs/new").exists(), "a check writes nothing");
    // The imported weights are those of the folder as it is: changed ones are imported again,
    // damaged ones refused.
    let weights = folder.path().join("base/model.safetensors");
    let mut bytes = std::fs::read(&weights).unwrap();
    let end = bytes.len();
    bytes[end - 4..].copy_from_slice(&f32::NAN.to_le_bytes());
    std::fs::write(&weights, bytes).unwrap();
    std::fs::remove_dir_all(folder.path().join("folder")).unwrap();
    let said = train(folder.path(), "folder", &ONE, 2).unwrap_err();
    assert!(said.contains("checkpoint.pretrained_checkpoint") && said.contains("model.safetensors"), "{said}");
}
