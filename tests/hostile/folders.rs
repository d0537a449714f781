//! Cases of folders that have several files of different sorts: logs and caches of runs,
//! conversations with their template, adapters, files of examples, and recipes and tokenizers in
//! the formats of other programs.

use std::path::{Path, PathBuf};

use bridge_tests::root;

use crate::fixture::Fixture;
use crate::mutate::{Case, Draw, change, copy, strings};

/// Copies a fixture of a crate to `folder/name`.
fn take(from: &str, folder: &Path, name: &str) -> PathBuf {
    let (from, to) = (root().join(from), folder.join(name));
    if from.is_dir() {
        bridge_tests::copy(&from, &to);
    } else {
        std::fs::copy(&from, &to).unwrap();
    }
    to
}

/// Regular files below a folder, in the order of their names.
fn files(folder: &Path) -> Vec<PathBuf> {
    let mut entries: Vec<PathBuf> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    entries.sort();
    let of = |entry: PathBuf| if entry.is_dir() { files(&entry) } else { vec![entry] };
    entries.into_iter().flat_map(of).collect()
}

/// A run's logs, caches, journal and pointer, read by commands that list runs and by the run that
/// goes on.
pub fn run(fixture: &Fixture, draw: &mut Draw, folder: &Path) -> Case {
    copy(fixture, &["recipe.toml", "text", "run", "runs"], folder);
    let is_log = draw.below(2) == 0;
    let all = files(&folder.join(if is_log { "runs" } else { "run" }));
    let path = draw.choose(&all).clone();
    let how = change(&path, draw);
    let name = path.file_name().unwrap().to_string_lossy().into_owned();
    let resumed = || {
        let mut arguments = strings(&["train", "recipe.toml"]);
        arguments.extend(Fixture::run_overrides().map(str::to_owned));
        // One iteration more than was trained.
        arguments.extend(strings(&["train.train_iters=3", "scheduler.override_opt_param_scheduler=true"]));
        arguments
    };
    let (arguments, kept) = match draw.below(4) {
        0 => (strings(&["runs", "list", "runs"]), vec![folder.join("runs"), folder.join("run")]),
        1 => (strings(&["runs", "compare", "runs/tiny", "runs/tiny"]), vec![folder.join("runs"), folder.join("run")]),
        2 => (strings(&["data", "verify", "run/cache/text"]), vec![folder.join("runs"), folder.join("run")]),
        _ => (resumed(), vec![folder.join("text")]),
    };
    // A command that only lists runs may skip unreadable files; a run recreates its caches.
    let names = strings(&[&name, "runs/tiny", "run/cache", "run/checkpoints"]);
    Case { what: format!("run {}: {how}", path.display()), arguments, names, is_certified: false, kept }
}

/// Conversations, written by a chat template.
pub fn conversations(_: &Fixture, draw: &mut Draw, folder: &Path) -> Case {
    let of = *draw.choose(&["headers", "inst", "thinks", "turns"]);
    let chat = take(&format!("bridge-data/tests/fixtures/chat/{of}"), folder, "chat");
    let file = *draw.choose(&["cases.jsonl", "chat_template.jinja", "tokenizer.json", "tokenizer_config.json"]);
    let how = change(&chat.join(file), draw);
    Case {
        what: format!("chat/{of}/{file}: {how}"),
        arguments: strings(&["data", "render", "chat", "chat/cases.jsonl", "--json"]),
        names: strings(&["chat"]),
        is_certified: false,
        kept: vec![chat],
    }
}

/// A folder with an adapter.
pub fn adapters(_: &Fixture, draw: &mut Draw, folder: &Path) -> Case {
    let of = *draw.choose(&["dora", "lora", "lora_head", "gpt2_dora", "qwen2_patterns"]);
    let peft = take(&format!("bridge-models/tests/fixtures/peft/{of}"), folder, "peft");
    let file = *draw.choose(&["adapter_config.json", "adapter_model.safetensors"]);
    let how = change(&peft.join("adapter").join(file), draw);
    let verify = ["verify", "peft/base", "--adapter", "peft/adapter", "--reference", "peft/golden.safetensors"];
    Case {
        what: format!("peft/{of}/{file}: {how}"),
        arguments: strings(&verify),
        names: strings(&["adapter"]),
        is_certified: false,
        kept: vec![peft],
    }
}

/// Files of examples for fine-tuning.
pub fn examples(fixture: &Fixture, draw: &mut Draw, folder: &Path) -> Case {
    copy(fixture, &["recipe.toml"], folder);
    let sft = folder.join("sft");
    std::fs::create_dir_all(&sft).unwrap();
    let of = *draw.choose(&["training.jsonl", "training.parquet", "training.arrow"]);
    if of.ends_with("arrow") {
        let name = draw.choose(&["stream.arrow", "file.arrow", "lz4.feather"]);
        take(&format!("bridge-data/tests/fixtures/sft/{name}"), folder, "sft/training.arrow");
    } else if of.ends_with("parquet") {
        take(
            &format!("bridge-data/tests/fixtures/sft/{}.parquet", draw.choose(&["snappy", "zstd"])),
            folder,
            "sft/training.parquet",
        );
    } else {
        let lines = (0..40).map(|i| format!("{{\"input\": \"{i} 7 9\", \"output\": \"11 {} 5\"}}\n", i * 3 % 50));
        std::fs::write(sft.join(of), lines.collect::<String>()).unwrap();
    }
    let how = change(&sft.join(of), draw);
    let mut arguments =
        strings(&["data", "samples", "recipe.toml", "--num-samples", "8,0,0", "--count", "4", "--json"]);
    arguments.extend(strings(&["dataset.kind=finetuning", "dataset.dataset_root=sft", "dataset.path_to_cache=cache"]));
    arguments.push("validation.eval_iters=0".into());
    if !of.ends_with("jsonl") {
        take("bridge-data/tests/fixtures/chat/turns", folder, "chat");
        arguments.extend(strings(&["tokenizer.vocab_size=null", "model.vocab_size=null"]));
        arguments.extend(strings(&["tokenizer.tokenizer_type=HuggingFaceTokenizer", "tokenizer.tokenizer_model=chat"]));
    }
    Case {
        what: format!("sft/{of}: {how}"),
        arguments,
        names: strings(&["sft", "dataset."]),
        is_certified: false,
        kept: vec![sft],
    }
}

/// Tokenizers in the files of SentencePiece, tiktoken and BERT.
pub fn other_tokenizers(fixture: &Fixture, draw: &mut Draw, folder: &Path) -> Case {
    copy(fixture, &["recipe.toml", "text"], folder);
    let (of, sort, key) = *draw.choose(&[
        ("llama.model", "SentencePieceTokenizer", "tokenizer_model"),
        ("unigram.model", "SentencePieceTokenizer", "tokenizer_model"),
        ("bpe.model", "SentencePieceTokenizer", "tokenizer_model"),
        ("ranks.json", "TikTokenizer", "tokenizer_model"),
        ("vocab.txt", "BertWordPieceLowerCase", "vocab_file"),
    ]);
    let path = take(&format!("bridge-data/tests/fixtures/tokenizers/{of}"), folder, of);
    let how = change(&path, draw);
    let mut arguments =
        strings(&["data", "samples", "recipe.toml", "--num-samples", "4,0,0", "--count", "2", "--json"]);
    arguments.extend(
        [
            "dataset.kind=gpt",
            "dataset.source=text/a.txt",
            "dataset.source_cache_dir=cache",
            "dataset.split=\"100,0,0\"",
            "tokenizer.vocab_size=null",
            "model.vocab_size=null",
            &format!("tokenizer.tokenizer_type={sort}"),
            &format!("tokenizer.{key}={of}"),
        ]
        .map(str::to_owned),
    );
    if sort == "TikTokenizer" {
        arguments.push("tokenizer.tiktoken_pattern=v2".into());
        arguments.push("tokenizer.tiktoken_num_special_tokens=10".into());
    }
    Case {
        what: format!("{of}: {how}"),
        arguments,
        names: strings(&[of]),
        is_certified: false,
        kept: vec![folder.join("text")],
    }
}

/// Recipes in YAML, and configurations that Megatron Bridge saved.
pub fn other_recipes(_: &Fixture, draw: &mut Draw, folder: &Path) -> Case {
    let of = *draw.choose(&["tiny.yaml", "upstream_defaults.yaml"]);
    let path = take(&format!("bridge-core/config/tests/fixtures/config/{of}"), folder, of);
    let how = change(&path, draw);
    let command = *draw.choose(&[&["config", "check"][..], &["plan"]]);
    Case {
        what: format!("{of}: {how}"),
        arguments: [strings(command), strings(&[of])].concat(),
        names: strings(&[of, "."]),
        is_certified: false,
        kept: Vec::new(),
    }
}
