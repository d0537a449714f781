//! Fine-tuning on files of examples: the same loss for each token however they are packed, filled
//! up and spread over ranks.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

use bridge_tests::{assert_close, bridge, losses_of, program};
use serde_json::Value;

/// Examples of which each takes `lengths` tokens of a sequence, as ids.
fn examples(lengths: &[usize]) -> String {
    let mut text = String::new();
    for (number, length) in lengths.iter().enumerate() {
        // The end-of-document token follows, which is only predicted.
        let ids: Vec<String> = (0..*length).map(|at| ((number * 31 + at * at * 7 + at) % 511).to_string()).collect();
        let (input, output) = ids.split_at(length / 3);
        let record = serde_json::json!({ "input": input.join(" "), "output": output.join(" ") });
        writeln!(text, "{record}").unwrap();
    }
    text
}

/// A folder with data: in training pairs of examples fill sequences, in validation they end at the
/// borders of chunks and elsewhere.
fn data() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let pairs: Vec<usize> = (0..8).flat_map(|_| [41, 23]).collect();
    std::fs::write(folder.path().join("training.jsonl"), examples(&pairs)).unwrap();
    let mixed = [16, 16, 32, 48, 16, 7, 25, 32, 64, 3, 31, 33, 15, 17, 16];
    std::fs::write(folder.path().join("validation.jsonl"), examples(&mixed)).unwrap();
    folder
}

const PACKED: &[&str] = &["dataset.packed_sequence_specs.packed_sequence_size=64", "train.global_batch_size=8"];
const FOLLOWING: &[&str] = &["dataset.dataset_kwargs.pack_on_the_fly=true", "validation.skip_train=true"];
const ALONE: &[&str] = &["train.global_batch_size=16"];
const WHOLE: &[&str] = &["train.global_batch_size=16", "dataset.dataset_kwargs.pad_to_max_length=true"];
const EXACT: &[&str] = &["train.global_batch_size=16", "dataset.dataset_kwargs.pad_seq_length_to_mult=1"];

/// Losses of two steps and of the validation.
fn losses(root: &Path, how: &[&str]) -> Vec<f64> {
    let folder = tempfile::tempdir().unwrap();
    let dataset_root = format!("dataset.dataset_root={}", root.display());
    let cache = format!("dataset.path_to_cache={}", folder.path().join("cache").display());
    let of_data = [
        "dataset.kind=finetuning",
        &dataset_root,
        &cache,
        "dataset.data_sharding=true",
        "model.seq_length=64",
        "model.calculate_per_token_loss=true",
        "ddp.average_in_collective=false",
        "train.train_iters=2",
        "validation.full_validation=true",
        "validation.eval_interval=2",
        "scheduler.lr_warmup_iters=0",
        "logger.log_interval=1",
    ];
    let output = bridge(folder.path(), &[&of_data[..], how].concat());
    assert!(output.status.success(), "{how:?}: {}", String::from_utf8_lossy(&output.stderr));
    [losses_of(folder.path(), "train"), losses_of(folder.path(), "valid")].concat()
}

#[test]
fn packing_filling_and_ranks_change_no_loss() {
    let data = data();
    let expected = losses(data.path(), ALONE);
    assert_eq!(expected.len(), 3, "{expected:?}");
    for how in [PACKED, WHOLE, EXACT] {
        assert_close(&losses(data.path(), how), &expected, &format!("{how:?}"));
    }
    for layout in [
        &["--ranks", "2", "model.tensor_model_parallel_size=2"][..],
        &["--ranks", "2", "model.tensor_model_parallel_size=2", "model.sequence_parallel=true"],
        &["--ranks", "2", "model.pipeline_model_parallel_size=2"],
        &["--ranks", "2", "model.context_parallel_size=2"],
        &["--ranks", "2"],
    ] {
        for how in [ALONE, PACKED] {
            let how = [how, layout].concat();
            assert_close(&losses(data.path(), &how), &expected, &format!("{how:?}"));
        }
    }
    // Which examples follow one another in training depends on the epoch; all of them are
    // validated.
    let untrained = losses(data.path(), &["validation.skip_train=true"]);
    assert_close(&losses(data.path(), FOLLOWING), &untrained, "packed on the fly");
}

#[test]
fn samples_are_shown_with_what_counts() {
    let data = data();
    let recipe = bridge_tests::recipe().display().to_string();
    let root = format!("dataset.dataset_root={}", data.path().display());
    let show = |more: &[&str]| {
        let output = Command::new(program())
            .args(["data", "show", &recipe, "dataset.kind=finetuning", &root, "--split", "valid", "--count", "1"])
            .args(more)
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let sample: serde_json::Value = serde_json::from_str(&show(&["--json"])).unwrap();
    let mask: Vec<i64> =
        sample["loss_mask"].as_array().unwrap().iter().map(|weight| weight.as_i64().unwrap()).collect();
    assert_eq!(mask, [vec![0; 5], vec![1; 12]].concat());
    assert_eq!(sample["tokens"].as_array().unwrap().len(), 17);
    assert!(show(&[]).contains("12 count for the loss"));
}

#[test]
fn what_cannot_be_trained_on_is_refused_before_anything_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let refused = |overrides: &[&str], parts: &[&str]| {
        let output = bridge(folder.path(), overrides);
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{overrides:?}: {told}");
        assert!(parts.iter().all(|part| told.contains(part)), "{overrides:?}: {told}");
    };
    let own = ["dataset.kind=finetuning", "dataset.dataset_root=examples", "dataset.data_sharding=true"];
    refused(&own[..1], &["dataset.dataset_root"]);
    refused(&own, &["dataset.dataset_root: ", "there is no training data"]);
    refused(&[&own[..], &["dataset.split=\"1,1,1\""]].concat(), &["dataset.split", "finetuning"]);
    refused(&["dataset.do_test=false"], &["dataset.do_test", "finetuning"]);
    std::fs::create_dir(folder.path().join("examples")).unwrap();
    std::fs::write(folder.path().join("examples/training.jsonl"), "{\"input\": \"1\", \"output\": \"x\"}\n").unwrap();
    refused(&own, &["examples/training.jsonl: line 1: ", "integers"]);
    std::fs::write(folder.path().join("examples/training.jsonl"), "{\"messages\": []}\n").unwrap();
    refused(&own, &["line 1: ", "no chat template"]);
    assert!(!folder.path().join("runs").exists());
}

/// The evaluations of a run, each loss by name.
fn losses_by_name(folder: &Path) -> Vec<BTreeMap<String, f64>> {
    let text = std::fs::read_to_string(folder.join("runs/tiny/metrics.jsonl")).unwrap();
    let records = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let evaluations = records.filter(|record| record["kind"] == "valid");
    evaluations.map(|record| serde_json::from_value(record["losses"].clone()).unwrap()).collect()
}

/// Files of a folder `validation` are sets of their own, and the loss of all is that of the files
/// together.
#[test]
fn validation_files_are_evaluated_apart() {
    let data = data();
    let several = tempfile::tempdir().unwrap();
    std::fs::create_dir(several.path().join("validation")).unwrap();
    std::fs::copy(data.path().join("training.jsonl"), several.path().join("training.jsonl")).unwrap();
    for (name, lengths) in [("long.jsonl", &[48, 64, 33, 32][..]), ("short.jsonl", &[7, 3, 16, 15, 16, 25, 16])] {
        std::fs::write(several.path().join("validation").join(name), examples(lengths)).unwrap();
    }
    let run = |root: &Path, how: &[&str]| {
        let folder = tempfile::tempdir().unwrap();
        let root = format!("dataset.dataset_root={}", root.display());
        let cache = format!("dataset.path_to_cache={}", folder.path().join("cache").display());
        let settings = [
            "dataset.kind=finetuning",
            &root,
            &cache,
            "dataset.data_sharding=true",
            "model.seq_length=64",
            "train.global_batch_size=16",
            "train.train_iters=2",
            "validation.full_validation=true",
            "validation.eval_interval=1",
            "scheduler.lr_warmup_iters=0",
        ];
        let output = bridge(folder.path(), &[&settings[..], how].concat());
        assert!(output.status.success(), "{how:?}: {}", String::from_utf8_lossy(&output.stderr));
        folder
    };
    let apart = run(several.path(), &["validation.multiple_validation_sets=true"]);
    let found = losses_by_name(apart.path());
    assert_eq!(found.len(), 2);
    assert_eq!(found[0].keys().collect::<Vec<_>>(), ["lm loss", "lm loss of long", "lm loss of short"]);
    let together = losses_of(run(several.path(), &[]).path(), "valid");
    assert_close(&found.iter().map(|losses| losses["lm loss"]).collect::<Vec<_>>(), &together, "of all");
    for name in ["long", "short"] {
        let alone = tempfile::tempdir().unwrap();
        std::fs::copy(data.path().join("training.jsonl"), alone.path().join("training.jsonl")).unwrap();
        let file = several.path().join(format!("validation/{name}.jsonl"));
        std::fs::copy(file, alone.path().join("validation.jsonl")).unwrap();
        let expected = losses_of(run(alone.path(), &[]).path(), "valid");
        let found: Vec<f64> = found.iter().map(|losses| losses[&format!("lm loss of {name}")]).collect();
        assert_close(&found, &expected, name);
    }
    let spread = run(several.path(), &["validation.multiple_validation_sets=true", "--ranks", "2"]);
    for (spread, found) in losses_by_name(spread.path()).iter().zip(&found) {
        let figures = |losses: &BTreeMap<String, f64>| losses.values().copied().collect::<Vec<_>>();
        assert_close(&figures(spread), &figures(found), "on two ranks");
    }
}

/// A run on the data of [`data`] with `more`, which says how long it is.
fn epochs(folder: &Path, root: &Path, more: &[&str]) -> std::process::Output {
    let dataset_root = format!("dataset.dataset_root={}", root.display());
    let of_data = [
        "dataset.kind=finetuning",
        &dataset_root,
        "dataset.path_to_cache=cache",
        "dataset.data_sharding=true",
        "model.seq_length=64",
        "validation.eval_iters=0",
        "scheduler.lr_warmup_iters=0",
        "logger.log_interval=1",
        "checkpoint.save=saved",
    ];
    bridge(folder, &[&of_data[..], more].concat())
}

#[test]
fn epochs_are_counted_by_the_data() {
    let data = data();
    // 16 examples in 8 packs: two and a half epochs are 20 packs, three batches of 8.
    let length = ["train.train_iters=null", "train.num_epochs=2.5"];
    for (how, iterations, said) in [(PACKED, 3, "2.5 of 8 samples: 3"), (ALONE, 3, "2.5 of 16 samples: 3")] {
        let (counted, given) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let stopped = epochs(counted.path(), data.path(), &[how, &length, &["train.exit_interval=2"]].concat());
        assert!(
            String::from_utf8_lossy(&stopped.stdout).contains(said),
            "{}",
            String::from_utf8_lossy(&stopped.stdout)
        );
        let resumed = epochs(counted.path(), data.path(), &[how, &length, &["checkpoint.load=saved"]].concat());
        assert!(resumed.status.success(), "{}", String::from_utf8_lossy(&resumed.stderr));
        let iters = format!("train.train_iters={iterations}");
        assert!(epochs(given.path(), data.path(), &[how, &[iters.as_str()]].concat()).status.success());
        let losses = losses_of(counted.path(), "train");
        assert_eq!(losses, losses_of(given.path(), "train"), "{how:?}");
        assert_eq!(losses.len(), iterations);
        let console = String::from_utf8_lossy(&resumed.stdout).into_owned();
        let log = std::fs::read_to_string(counted.path().join("runs/tiny/train.log")).unwrap();
        for text in [console, log] {
            let line = text.lines().rfind(|line| line.contains("] iteration")).unwrap();
            let place = line.split('|').next().unwrap().replace(' ', "");
            assert!(place.ends_with("iteration3/3") && line.contains("time left: 0"), "{line}");
            // Each batch is a pass over the data.
            assert!(line.contains("epoch: 3.00"), "{line}");
        }
        let saved = |folder: &Path| std::fs::read_to_string(folder.join("saved/iter_0000003/run_config.toml")).unwrap();
        assert!(saved(counted.path()).contains("train_iters = 3") && !saved(counted.path()).contains("num_epochs"));
    }
    let two_ranks = tempfile::tempdir().unwrap();
    let layout = ["--ranks", "2", "train.train_iters=null", "train.num_epochs=1"];
    let output = epochs(two_ranks.path(), data.path(), &[PACKED, &layout].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(losses_of(two_ranks.path(), "train").len(), 1);
}

#[test]
fn epochs_of_other_data_and_a_second_length_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let refused = |arguments: &[&str], part: &str| {
        let output = bridge(folder.path(), arguments);
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{text}");
        assert!(text.contains("train.num_epochs") && text.contains(part), "{text}");
    };
    refused(&["train.num_epochs=2"], "excludes train.train_iters");
    refused(&["train.train_iters=null", "train.num_epochs=2"], "dataset.kind = \"finetuning\"");
    refused(&["train.train_iters=null", "train.num_epochs=0"], "0");
}

/// Files with documented functions, of which a tokenizer is trained and examples are made.
fn rust_sources(folder: &Path) {
    std::fs::create_dir_all(folder.join("src")).unwrap();
    for number in 0..40 {
        let text = format!(
            "/// Adds {number} to what is given and returns the sum.\n#[must_use]\npub fn add_{number}(x: u32) -> u32 {{\n    x + {number}\n}}\n"
        );
        std::fs::write(folder.join(format!("src/of_{number}.rs")), text).unwrap();
    }
}

const RUST_DOCS: [&str; 19] = [
    "validation.full_validation=true",
    "model.calculate_per_token_loss=true",
    "ddp.average_in_collective=false",
    "dataset.kind=finetuning",
    "dataset.source=src/*.rs",
    "dataset.source_format=rust-docs",
    "dataset.split='80,20,0'",
    "dataset.dataset_kwargs.chat=true",
    "dataset.data_sharding=true",
    "tokenizer.tokenizer_type=ByteLevelBPE",
    "tokenizer.vocab_size=null",
    "tokenizer.bpe_vocab_size=300",
    "tokenizer.chat_template=\"{% for m in messages %}{% if m.role == 'user' %}{{ m.content }}: {% else %}{% generation %}{{ m.content }}{% endgeneration %}{% endif %}{% endfor %}\"",
    "model.vocab_size=null",
    "train.train_iters=2",
    "train.global_batch_size=8",
    "validation.eval_interval=2",
    "scheduler.lr_warmup_iters=0",
    "logger.log_interval=1",
];

#[test]
fn examples_are_made_of_documented_functions() {
    let [one, two] = [1, 2].map(|ranks| {
        let folder = tempfile::tempdir().unwrap();
        rust_sources(folder.path());
        let ranks = ranks.to_string();
        let train = || bridge(folder.path(), &[&RUST_DOCS[..], &["--ranks", &ranks]].concat());
        let output = train();
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        assert!(said.contains("made examples of 40 Rust files"), "{said}");
        let again = train();
        assert!(String::from_utf8_lossy(&again.stdout).contains("reusing examples of 40 Rust files"));
        let made = walk(folder.path(), "training.jsonl");
        let lines = std::fs::read_to_string(made).unwrap();
        let first: Value = serde_json::from_str(lines.lines().next().unwrap()).unwrap();
        let [question, answer] = [0, 1].map(|at| first["messages"][at]["content"].as_str().unwrap().to_owned());
        let number =
            question.strip_prefix("pub fn add_").and_then(|rest| rest.strip_suffix("(x: u32) -> u32")).unwrap();
        assert_eq!(answer, format!("Adds {number} to what is given and returns the sum."));
        (losses_of(folder.path(), "train"), losses_of(folder.path(), "valid"))
    });
    assert!(one.0.len() >= 2 && !one.1.is_empty());
    assert_close(&two.0[..2], &one.0[..2], "two ranks");
    assert_close(&two.1[..1], &one.1[..1], "two ranks, validation");
}

#[test]
fn what_ends_an_answer_is_exported() {
    let folder = tempfile::tempdir().unwrap();
    rust_sources(folder.path());
    let exported = |name: &str, end: &str| {
        let template = format!(
            "tokenizer.chat_template=\"{{% for m in messages %}}{{{{ m.content }}}}{{% if m.role == 'user' %}}: {{% else %}}{end}{{% endif %}}{{% endfor %}}\""
        );
        let save = format!("checkpoint.save={name}");
        let own = [template.as_str(), &save, &format!("name={name}")];
        let settings = RUST_DOCS.iter().filter(|setting| !setting.starts_with("tokenizer.chat_template"));
        let output = bridge(folder.path(), &[&settings.copied().collect::<Vec<_>>()[..], &own].concat());
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let to = format!("{name}-exported");
        let export = Command::new(program()).args(["convert", "export", name, &to]).current_dir(folder.path()).output();
        assert!(export.as_ref().unwrap().status.success(), "{export:?}");
        let read = |file: &str| std::fs::read_to_string(folder.path().join(&to).join(file)).ok();
        let json = |text: String| serde_json::from_str::<Value>(&text).unwrap();
        (read("generation_config.json").map(json), json(read("tokenizer.json").unwrap()))
    };
    let (settings, tokenizer) = exported("ended", "<|endoftext|>");
    let tokens = tokenizer["added_tokens"].as_array().unwrap();
    let end = tokens.iter().find(|token| token["content"] == "<|endoftext|>").expect("the tokenizer has it");
    assert_eq!(settings.expect("it is written")["eos_token_id"], end["id"]);
    // Lines end with text that is not a single token.
    assert_eq!(exported("open", "\\n").0, None);
}

/// The file of a name, somewhere below a folder.
fn walk(folder: &Path, name: &str) -> std::path::PathBuf {
    let find = |folder: &Path| {
        let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        entries.collect::<Vec<_>>()
    };
    let mut left = vec![folder.to_owned()];
    while let Some(place) = left.pop() {
        if place.is_dir() {
            left.extend(find(&place));
        } else if place.ends_with(name) {
            return place;
        }
    }
    panic!("no {name} in {}", folder.display())
}

#[test]
fn examples_of_sources_need_what_makes_them() {
    let folder = tempfile::tempdir().unwrap();
    rust_sources(folder.path());
    for (change, part) in [
        (&["dataset.kind=gpt", "dataset.data_sharding=false"][..], "dataset.source_format"),
        (&["dataset.dataset_root=src"], "dataset.dataset_root"),
        (&["dataset.split=null"], "dataset.split"),
        (&["dataset.source_jsonl_key=other", "--strict"], "dataset.source_jsonl_key"),
        (&["dataset.source='src/of_1.rs'"], "no documented Rust functions for the"),
    ] {
        let output = bridge(folder.path(), &[&RUST_DOCS[..], change].concat());
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{change:?}: {text}");
        assert!(text.contains(part), "{change:?}: {text}");
    }
}
