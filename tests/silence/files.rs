//! Files that a command did not make, and records of runs that share a folder.

use bridge_tests::root;

use super::*;

fn lines(path: &Path) -> Vec<serde_json::Value> {
    let text = std::fs::read_to_string(path).unwrap();
    text.lines().map(|line| serde_json::from_str(line).expect("a record")).collect()
}

#[test]
fn records_of_a_run_are_not_lost_to_another() {
    let place = tempfile::tempdir().unwrap();
    copy(run_on_text(), place.path());
    let log = |name: &str| place.path().join("runs/notes").join(name);
    let first = lines(&log("metrics.jsonl"));
    let run = first[0]["run"].as_str().expect("a name").to_owned();
    assert!(bridge(place.path(), &["train", "notes.toml"]).status.success());
    let resumed = lines(&log("metrics.jsonl"));
    assert_eq!(resumed[..4], first[..]);
    assert!(resumed.len() == 8 && resumed.iter().all(|record| record["run"] == run.as_str()), "a resumed run goes on");
    assert!(bridge(place.path(), &["train", "notes.toml", "checkpoint.save=new"]).status.success());
    assert_eq!(lines(&log(&format!("metrics-{run}.jsonl"))), resumed, "kept");
    let other = lines(&log("metrics.jsonl"));
    assert!(
        other.len() == 8
            && other.iter().all(|record| record["run"] == other[0]["run"] && record["run"] != run.as_str())
    );
}

/// A Hugging Face folder of a small Llama, with generation settings and a chat template.
fn llama(folder: &Path) {
    let golden = root().join("bridge-models/tests/fixtures/golden/llama");
    let hf = folder.join("hf");
    std::fs::create_dir_all(&hf).unwrap();
    std::fs::copy(golden.join("model.safetensors"), hf.join("model.safetensors")).unwrap();
    let text = std::fs::read_to_string(golden.join("config.json")).unwrap();
    let mut config: serde_json::Value = serde_json::from_str(&text).unwrap();
    config["max_position_embeddings"] = 4096.into();
    config["eos_token_id"] = serde_json::json!([2, 7]);
    config["transformers_version"] = "4.0".into();
    std::fs::write(hf.join("config.json"), config.to_string()).unwrap();
    std::fs::write(hf.join("generation_config.json"), "{\"temperature\": 0.6, \"eos_token_id\": [2, 7]}").unwrap();
    std::fs::write(hf.join("chat_template.jinja"), "{{ messages }}").unwrap();
}

fn imported(folder: &Path) {
    llama(folder);
    let output = bridge(folder, &["convert", "import", "hf", "base"]);
    assert!(output.status.success(), "{}", said(&output));
}

fn exported(folder: &Path) {
    imported(folder);
    let output = bridge(folder, &["convert", "export", "base", "out"]);
    assert!(output.status.success(), "{}", said(&output));
}

fn with_others_folders(folder: &Path) {
    imported(folder);
    for name in ["mine", "tokens", "templates/additional_chat_templates"] {
        std::fs::create_dir_all(folder.join(name)).unwrap();
    }
    std::fs::write(folder.join("templates/additional_chat_templates/tool_use.jinja"), "mine").unwrap();
    std::fs::write(folder.join("mine.gguf"), "mine").unwrap();
    std::fs::write(folder.join("mine/config.json"), "{}").unwrap();
    std::fs::write(folder.join("mine/tokenizer.json"), "{}").unwrap();
    std::fs::write(folder.join("tokens/text.bin"), "mine").unwrap();
}

/// A row for a command that would overwrite files that it has not made.
fn protected(before: fn(&Path), arguments: &'static [&'static str], says: &'static [&'static str]) -> Case {
    Case { does: "writes over something", before, arguments, code: 2, says }
}

#[test]
fn nothing_that_another_made_is_written_over() {
    check(
        run_on_text(),
        &[
            protected(llama, &["convert", "import", "hf", "hf"], &["hf lies in the source, hf", "--force"]),
            protected(llama, &["convert", "import", "hf", "hf/new"], &["hf/new lies in the source", "--force"]),
            protected(
                llama,
                &["convert", "import", "hf", "ckpt"],
                &["ckpt/", " was not made by this command", "--force"],
            ),
            protected(imported, &["convert", "export", "base", "base"], &["base lies in the source", "--force"]),
            protected(
                imported,
                &["convert", "export", "base", "hf"],
                &["hf/chat_template.jinja was not made by this command", "--force"],
            ),
            protected(
                with_others_folders,
                &["convert", "export", "base", "mine"],
                &["mine/config.json was not made", "--force"],
            ),
            protected(
                with_others_folders,
                &["convert", "export", "base", "templates"],
                &["templates/additional_chat_templates/tool_use.jinja was not made", "--force"],
            ),
            protected(
                with_others_folders,
                &["convert", "export", "base", "mine.gguf"],
                &["mine.gguf was not made", "--force"],
            ),
            protected(
                with_others_folders,
                &["tokenizer", "train", "notes/*.txt", "-o", "mine", "--vocab-size", "300"],
                &["mine/tokenizer.json was not made by this", "--force"],
            ),
            protected(
                with_others_folders,
                &["data", "build", "notes/*.txt", "--tokenizer", "data/notes", "-o", "tokens/text"],
                &["tokens/text.bin was not made by this", "--force"],
            ),
            protected(
                with_others_folders,
                &["train", "notes.toml", "dataset.source_cache_dir=mine", "checkpoint.save=new"],
                &["dataset.source_cache_dir", "mine/tokenizer.json was not made by this"],
            ),
        ],
    );
}

#[test]
fn what_a_command_made_or_is_forced_to_is_written_over() {
    check(
        run_on_text(),
        &[
            Case {
                does: "imports again",
                before: imported,
                arguments: &["convert", "import", "hf", "base"],
                code: 0,
                says: &["wrote base/iter_0000000"],
            },
            Case {
                does: "exports again",
                before: exported,
                arguments: &["convert", "export", "base", "out"],
                code: 0,
                says: &["wrote out"],
            },
            Case {
                does: "forces an export",
                before: with_others_folders,
                arguments: &["convert", "export", "base", "mine", "--force"],
                code: 0,
                says: &["wrote mine"],
            },
            Case {
                does: "forces a tokenizer",
                before: with_others_folders,
                arguments: &["tokenizer", "train", "notes/*.txt", "-o", "mine", "--vocab-size", "300", "--force"],
                code: 0,
                says: &["trained 300 tokens"],
            },
            Case {
                does: "forces token files",
                before: with_others_folders,
                arguments: &[
                    "data",
                    "build",
                    "notes/*.txt",
                    "--tokenizer",
                    "data/notes",
                    "-o",
                    "tokens/text",
                    "--force",
                ],
                code: 0,
                says: &["packed 12 documents"],
            },
        ],
    );
}

#[test]
fn an_export_has_what_the_folder_had_and_a_model_card() {
    let place = tempfile::tempdir().unwrap();
    exported(place.path());
    let read = |name: &str| std::fs::read_to_string(place.path().join("out").join(name)).unwrap();
    let config: serde_json::Value = serde_json::from_str(&read("config.json")).unwrap();
    assert_eq!(config["max_position_embeddings"], 4096);
    assert_eq!(config["eos_token_id"], serde_json::json!([2, 7]));
    assert_eq!(config["transformers_version"], "4.0");
    for name in ["generation_config.json", "chat_template.jinja"] {
        assert_eq!(read(name), std::fs::read_to_string(place.path().join("hf").join(name)).unwrap());
    }
    let card = read("README.md");
    assert!(
        card.starts_with("---\nlibrary_name: transformers\n") && card.contains("| data | none: imported weights |"),
        "{card}"
    );
    assert!(card.contains("[model]") && card.contains("num_layers"), "{card}");
}
