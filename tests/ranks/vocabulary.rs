//! Vocabularies that follow the tokenizer: one model at any layout, whose checkpoints go on at any
//! other.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use bridge_core::checkpoint::{
    CheckpointStore, CheckpointWriter, LoadRequest, Resolution, RunFiles, SaveOptions, ShardTensor, Snapshot,
    TensorGroup,
};

use bridge_tests::{assert_close, bridge, losses, run_in};

/// 300 tokens in rows that divide by 7: 301, which is odd.
const TEXT: [&str; 14] = [
    "dataset.kind=gpt",
    "dataset.source=words.txt",
    "dataset.split=1,0,0",
    "tokenizer.tokenizer_type=ByteLevelBPE",
    "tokenizer.vocab_size=null",
    "tokenizer.bpe_vocab_size=300",
    "model.vocab_size=null",
    "model.make_vocab_size_divisible_by=7",
    "model.hidden_size=96",
    "model.num_attention_heads=6",
    "model.num_query_groups=3",
    "train.global_batch_size=6",
    "train.train_iters=8",
    "validation.eval_iters=0",
];

const LAYOUTS: [&[&str]; 5] = [
    &[],
    &["--ranks", "2", "model.tensor_model_parallel_size=2", "model.num_query_groups=6"],
    &["--ranks", "3", "model.tensor_model_parallel_size=3", "model.sequence_parallel=true", "model.seq_length=63"],
    &[
        "--ranks",
        "6",
        "model.tensor_model_parallel_size=3",
        "model.pipeline_model_parallel_size=2",
        "model.share_embeddings_and_output_weights=true",
    ],
    &["--ranks", "6", "model.tensor_model_parallel_size=3", "ddp.use_distributed_optimizer=true"],
];

fn write_words(folder: &Path) {
    let mut text = String::new();
    let mut state = 1_u32;
    for _ in 0..6000 {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let word = state >> 20;
        write!(text, "{}{} ", ["ba", "ke", "mo", "ti"][word as usize % 4], word % 97).unwrap();
    }
    std::fs::write(folder.join("words.txt"), text).unwrap();
}

/// Trains in a folder that already has `words.txt`.
fn train(folder: &Path, more: &[&str]) {
    run_in(folder, &[&TEXT[..], more].concat());
}

/// Part of a layout that is about the model: a run on one rank compares only with it.
fn model_of<'a>(layout: &[&'a str]) -> Vec<&'a str> {
    let is_model = |setting: &&&str| setting.starts_with("model.") && !setting.contains("parallel");
    layout.iter().filter(is_model).copied().collect()
}

#[test]
fn a_vocabulary_does_not_depend_on_the_ranks() {
    for layout in LAYOUTS {
        let model = model_of(layout);
        let (one, many) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        for folder in [&one, &many] {
            write_words(folder.path());
        }
        train(one.path(), &model);
        train(many.path(), layout);
        assert_close(&losses(many.path()), &losses(one.path()), &format!("{layout:?}"));
    }
}

#[test]
fn checkpoints_go_on_at_any_other_number_of_tensor_parallel_ranks() {
    let save = ["checkpoint.save=saved", "model.num_query_groups=6"];
    let layouts: [&[&str]; 4] = [
        &[],
        &["--ranks", "2", "model.tensor_model_parallel_size=2"],
        &["--ranks", "3", "model.tensor_model_parallel_size=3"],
        &[
            "--ranks",
            "4",
            "model.tensor_model_parallel_size=2",
            "ddp.use_distributed_optimizer=true",
            "train.global_batch_size=6",
        ],
    ];
    let reference = tempfile::tempdir().unwrap();
    write_words(reference.path());
    train(reference.path(), &save);
    let expected = losses(reference.path());
    for (from, to) in (0..4).flat_map(|from| [1, 2].map(|further| (from, (from + further) % 4))) {
        let folder = tempfile::tempdir().unwrap();
        write_words(folder.path());
        train(folder.path(), &[&save[..], layouts[from], &["train.exit_interval=4"]].concat());
        train(folder.path(), &[&save[..], layouts[to]].concat());
        assert_close(&losses(folder.path()), &expected, &format!("{:?}, then {:?}", layouts[from], layouts[to]));
    }
}

/// Rewrites the newest checkpoint of `root` as an earlier release would have saved it, with `edit`
/// applied to its recipe.
fn age(root: &Path, edit: impl Fn(&str) -> String) {
    let Resolution::Found(found) = CheckpointStore::open(root).unwrap().resolve(&LoadRequest::default()).unwrap()
    else {
        panic!("there is a checkpoint");
    };
    let checkpoint = found.checkpoint;
    let group = |name: &str| {
        let tensors =
            checkpoint.names_in(name).map(|tensor| ShardTensor::whole(tensor, checkpoint.load_tensor(tensor).unwrap()));
        TensorGroup { name: name.to_owned(), tensors: tensors.collect() }
    };
    let mut train_state = checkpoint.train_state().unwrap();
    train_state.extra.remove("vocabulary");
    let is_own = |name: &&str| name.starts_with("tokenizer") || name.ends_with(".txt") || *name == "vocab.json";
    let files = checkpoint.file_names().filter(is_own);
    let files: BTreeMap<_, _> = files.map(|name| (name.to_owned(), checkpoint.file(name).unwrap().into())).collect();
    let run =
        RunFiles { train_state, run_config: edit(&checkpoint.run_config().unwrap()), files, ..RunFiles::default() };
    let groups = vec![group("model"), group("optimizer")];
    CheckpointWriter::open(root, SaveOptions::default()).unwrap().save(&Snapshot { run, groups }).unwrap();
}

/// Earlier releases padded to a multiple of the tensor-parallel size as well. All rows had a part
/// in the loss, so they are kept.
#[test]
fn rows_of_earlier_releases_are_kept() {
    let save = ["checkpoint.save=saved", "model.num_query_groups=6"];
    // 300 padded to a multiple of 2 x 7; a new run has 301.
    let explicit = [&save[..], &["model.vocab_size=308", "model.make_vocab_size_divisible_by=128"]].concat();
    let reference = tempfile::tempdir().unwrap();
    write_words(reference.path());
    train(reference.path(), &explicit);
    let expected = losses(reference.path());
    let aged = |recipe: &str| {
        let recipe = recipe.replace("\nvocab_size = 308\n", "\n");
        let recipe = recipe.replace("make_vocab_size_divisible_by = 128", "make_vocab_size_divisible_by = 7");
        recipe.replace("tensor_model_parallel_size = 1", "tensor_model_parallel_size = 2")
    };
    let layouts: [&[&str]; 3] = [
        &[],
        &["--ranks", "2", "model.tensor_model_parallel_size=2"],
        &["--ranks", "3", "model.tensor_model_parallel_size=3"],
    ];
    for layout in layouts {
        let folder = tempfile::tempdir().unwrap();
        write_words(folder.path());
        train(folder.path(), &[&explicit[..], &["train.exit_interval=3"]].concat());
        age(&folder.path().join("saved"), aged);
        // Twice, so that the run's own checkpoint is read too.
        train(folder.path(), &[&save[..], layout, &["train.exit_interval=5"]].concat());
        train(folder.path(), &[&save[..], layout].concat());
        assert_close(&losses(folder.path()), &expected, &format!("{layout:?}"));
    }
}

#[test]
fn another_padding_than_that_of_the_checkpoint_is_another_model() {
    let folder = tempfile::tempdir().unwrap();
    write_words(folder.path());
    train(folder.path(), &["checkpoint.save=saved", "train.exit_interval=4"]);
    let larger = ["checkpoint.save=saved", "model.make_vocab_size_divisible_by=128"];
    let output = bridge(folder.path(), &[&TEXT[..], &larger].concat());
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{text}");
    assert!(text.contains("expected F32 [384, 96]") && text.contains("found F32 [301, 96]"), "{text}");
}
