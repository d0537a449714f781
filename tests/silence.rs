//! What would ruin a run, a checkpoint or a file without a word: each row is what a user does, and what Bridge must say and return.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use bridge_tests::{copy, program, root};

/// A thing that a user does in a folder with a run.
struct Case {
    /// What it is, for messages.
    does: &'static str,
    /// What happens to the folder before.
    before: fn(&Path),
    /// The arguments of `bridge`.
    arguments: &'static [&'static str],
    /// The exit code.
    code: i32,
    /// What standard output and error must have between them.
    says: &'static [&'static str],
}

/// Nothing happens before.
fn as_it_is(_: &Path) {}

fn bridge(folder: &Path, arguments: &[&str]) -> Output {
    Command::new(program()).args(arguments).current_dir(folder).output().expect("bridge starts")
}

fn said(output: &Output) -> String {
    [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text).into_owned()).concat()
}

/// Runs each case in a copy of `folder`, and says of all that fail what they said.
fn check(folder: &Path, cases: &[Case]) {
    let failures: Vec<String> = std::thread::scope(|scope| {
        let runs: Vec<_> = cases.iter().map(|case| scope.spawn(|| failure(folder, case))).collect();
        runs.into_iter().filter_map(|run| run.join().expect("a case ends")).collect()
    });
    assert!(failures.is_empty(), "{} of {} cases:\n{}", failures.len(), cases.len(), failures.join("\n\n"));
}

fn failure(folder: &Path, case: &Case) -> Option<String> {
    let place = tempfile::tempdir().unwrap();
    copy(folder, place.path());
    (case.before)(place.path());
    let output = bridge(place.path(), case.arguments);
    let text = said(&output);
    let missing: Vec<_> = case.says.iter().filter(|part| !text.contains(**part)).collect();
    let is_right = missing.is_empty() && output.status.code() == Some(case.code);
    (!is_right).then(|| format!("== {}: {}, not said: {missing:?}\n{text}", case.does, output.status))
}

const RECIPE: &str = r#"
name = "notes"
[model]
num_layers = 2
hidden_size = 32
num_attention_heads = 4
seq_length = 32
position_embedding_type = "rope"
hidden_dropout = 0.0
[train]
micro_batch_size = 2
global_batch_size = 4
train_iters = 8
num_threads = 1
[validation]
eval_iters = 0
[optimizer]
lr = 1e-3
[dataset]
source = "notes/*.txt"
split = "1,0,0"
[tokenizer]
tokenizer_type = "ByteLevelBPE"
bpe_vocab_size = 300
[checkpoint]
save = "ckpt"
save_interval = 2
[logger]
progress = "none"
"#;

fn write_notes(folder: &Path, numbers: std::ops::Range<usize>, word: &str) {
    std::fs::create_dir_all(folder.join("notes")).unwrap();
    for number in numbers {
        let text: String = (0..80).map(|index| format!("{word} {} of note {number}. ", index * number % 97)).collect();
        std::fs::write(folder.join(format!("notes/{number}.txt")), text).unwrap();
    }
}

/// A folder with a run on text that was stopped after four of eight iterations.
fn run_on_text() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let folder = tempfile::tempdir().unwrap().keep();
        write_notes(&folder, 0..12, "line");
        std::fs::write(folder.join("notes.toml"), RECIPE).unwrap();
        let output = bridge(&folder, &["train", "notes.toml", "train.exit_interval=4"]);
        assert!(output.status.success(), "{}", said(&output));
        folder
    })
}

fn other_text(folder: &Path) {
    write_notes(folder, 20..60, "something else, quite different:");
}

/// A tokenizer of the same size, trained on other text.
fn other_tokenizer(folder: &Path) {
    write_notes(&folder.join("elsewhere"), 0..9, "quick brown foxes");
    let arguments = ["tokenizer", "train", "elsewhere/notes/*.txt", "-o", "own", "--vocab-size", "300"];
    let output = bridge(folder, &arguments);
    assert!(output.status.success(), "{}", said(&output));
}

#[test]
fn a_resumed_run_keeps_its_tokenizer_and_says_what_changed_in_its_text() {
    const CHANGED: &str = "the data has changed since the checkpoint of iteration 4: 12 documents, ";
    check(
        run_on_text(),
        &[
            Case {
                does: "resumes after adding files",
                before: other_text,
                arguments: &["train", "notes.toml"],
                code: 0,
                says: &[
                    "the tokenizer is that of the checkpoint (300 tokens)",
                    CHANGED,
                    "52 documents, ",
                    "goes on with sample 16",
                ],
            },
            Case {
                does: "resumes on two ranks after adding files",
                before: other_text,
                arguments: &["train", "notes.toml", "--ranks", "2"],
                code: 0,
                says: &["the tokenizer is that of the checkpoint (300 tokens)", CHANGED, "data-parallel ranks 1 -> 2"],
            },
            Case {
                does: "asks for another size of vocabulary",
                before: as_it_is,
                arguments: &["train", "notes.toml", "tokenizer.bpe_vocab_size=320"],
                code: 2,
                says: &["tokenizer.bpe_vocab_size", "found:    320", "expected: 300", "ckpt/iter_0000004"],
            },
            Case {
                does: "names another tokenizer",
                before: other_tokenizer,
                arguments: &[
                    "train",
                    "notes.toml",
                    "tokenizer.tokenizer_type=HuggingFaceTokenizer",
                    "tokenizer.tokenizer_model=own",
                    "tokenizer.bpe_vocab_size=null",
                ],
                code: 2,
                says: &[
                    "tokenizer.tokenizer_model",
                    "300 tokens in ckpt/iter_0000004, 300 here; token 25",
                    "there, ",
                    "found:    own",
                ],
            },
            Case {
                does: "fine-tunes with another tokenizer",
                before: other_tokenizer,
                arguments: &[
                    "train",
                    "notes.toml",
                    "tokenizer.tokenizer_type=HuggingFaceTokenizer",
                    "tokenizer.tokenizer_model=own",
                    "tokenizer.bpe_vocab_size=null",
                    "checkpoint.pretrained_checkpoint=ckpt",
                    "checkpoint.save=new",
                ],
                code: 2,
                says: &["tokenizer.tokenizer_model", "token 25", "there, "],
            },
            Case {
                does: "fine-tunes on other text with a tokenizer to train",
                before: other_text,
                arguments: &["train", "notes.toml", "checkpoint.pretrained_checkpoint=ckpt", "checkpoint.save=new"],
                code: 0,
                says: &[
                    "the tokenizer is that of the checkpoint (300 tokens)",
                    "starting from the weights in ckpt/iter_0000004",
                ],
            },
            Case {
                does: "lets another tokenizer pass",
                before: other_tokenizer,
                arguments: &[
                    "train",
                    "notes.toml",
                    "tokenizer.tokenizer_type=HuggingFaceTokenizer",
                    "tokenizer.tokenizer_model=own",
                    "tokenizer.bpe_vocab_size=null",
                    "checkpoint.allow_model_changes=[\"tokenizer\"]",
                ],
                code: 0,
                says: &["warning: checkpoint.allow_model_changes: another tokenizer: 300 tokens in"],
            },
        ],
    );
}

/// A row for a setting of the model that is another one than the checkpoint's.
fn refused(setting: &'static [&'static str], says: &'static [&'static str]) -> Case {
    Case { does: "resumes with another setting of the model", before: as_it_is, arguments: setting, code: 2, says }
}

#[test]
fn another_model_is_refused_with_both_values() {
    check(
        run_on_text(),
        &[
            refused(&["train", "notes.toml", "model.rotary_base=5e5"], &["model.rotary_base", "500000.0", "10000.0"]),
            refused(
                &["train", "notes.toml", "model.layernorm_epsilon=1e-6"],
                &["model.layernorm_epsilon", "1e-6", "1e-5"],
            ),
            refused(
                &["train", "notes.toml", "model.activation_func=relu"],
                &["model.activation_func", "\"relu\"", "\"gelu\""],
            ),
            refused(
                &["train", "notes.toml", "model.num_layers=1"],
                &["model.num_layers", "found:    1", "expected: 2"],
            ),
            refused(
                &["train", "notes.toml", "model.num_attention_heads=8"],
                &["model.num_attention_heads", "found:    8", "expected: 4"],
            ),
            refused(&["train", "notes.toml", "model.window_size=[8, 0]"], &["model.window_size", "[8, 0]", "null"]),
            refused(&["train", "notes.toml", "model.final_logit_softcapping=30.0"], &["model.final_logit_softcapping"]),
            refused(
                &["train", "notes.toml", "model.share_embeddings_and_output_weights=false"],
                &["model.share_embeddings_and_output_weights", "found:    false", "expected: true"],
            ),
            refused(
                &[
                    "train",
                    "notes.toml",
                    "checkpoint.save=new",
                    "checkpoint.pretrained_checkpoint=ckpt",
                    "model.rotary_percent=0.5",
                ],
                &["model.rotary_percent", "found:    0.5", "expected: 1.0", "ckpt/iter_0000004"],
            ),
            refused(
                &["train", "notes.toml", "model.vocab_size=512"],
                &["expected F32 [512, 32], found F32 [384, 32]", "model.vocab_size null -> 512"],
            ),
            refused(
                &["train", "notes.toml", "model.make_vocab_size_divisible_by=500"],
                &["expected F32 [500, 32], found F32 [384, 32]", "model.make_vocab_size_divisible_by 128 -> 500"],
            ),
            refused(
                &["train", "notes.toml", "checkpoint.allow_model_changes=[\"rotary_bas\"]"],
                &["checkpoint.allow_model_changes", "did you mean `rotary_base`?"],
            ),
            Case {
                does: "lets another setting of the model pass",
                before: as_it_is,
                arguments: &[
                    "train",
                    "notes.toml",
                    "model.rotary_base=5e5",
                    "checkpoint.allow_model_changes=[\"rotary_base\"]",
                ],
                code: 0,
                says: &[
                    "warning: checkpoint.allow_model_changes: another model since iteration 4: model.rotary_base 10000.0 -> 500000.0",
                ],
            },
        ],
    );
}

#[test]
fn what_changes_the_course_of_a_resumed_run_is_said() {
    const ORDER: &str =
        "the sample order is another from iteration 5 on: the run goes on with sample 16 of the new order";
    check(
        run_on_text(),
        &[
            Case {
                does: "changes betas",
                before: as_it_is,
                arguments: &["train", "notes.toml", "optimizer.adam_beta2=0.9", "optimizer.adam_eps=1e-6"],
                code: 0,
                says: &[
                    "changed since the checkpoint of iteration 4: optimizer.adam_beta2 0.999 -> 0.9, optimizer.adam_eps 1e-8 -> 1e-6",
                ],
            },
            Case {
                does: "changes the optimizer",
                before: as_it_is,
                arguments: &["train", "notes.toml", "optimizer.optimizer=sgd"],
                code: 2,
                says: &[
                    "optimizer tensors do not belong to this run's optimizer",
                    "optimizer.optimizer \"adam\" -> \"sgd\"",
                ],
            },
            Case {
                does: "changes the seed of the data",
                before: as_it_is,
                arguments: &["train", "notes.toml", "dataset.random_seed=99"],
                code: 0,
                says: &["dataset.random_seed 1234 -> 99", ORDER],
            },
            Case {
                does: "changes the length of samples",
                before: as_it_is,
                arguments: &["train", "notes.toml", "model.seq_length=16"],
                code: 0,
                says: &["model.seq_length 32 -> 16", ORDER],
            },
            Case {
                does: "changes the batch",
                before: as_it_is,
                arguments: &[
                    "train",
                    "notes.toml",
                    "train.global_batch_size=8",
                    "scheduler.override_opt_param_scheduler=true",
                ],
                code: 0,
                says: &["train.global_batch_size 4 -> 8"],
            },
            Case {
                does: "changes the schedule",
                before: as_it_is,
                arguments: &["train", "notes.toml", "optimizer.lr=1e-2"],
                code: 2,
                says: &["0.001", "0.01", "scheduler.override_opt_param_scheduler"],
            },
            Case {
                does: "drops the optimizer's state",
                before: as_it_is,
                arguments: &["train", "notes.toml", "checkpoint.load_optim=false"],
                code: 0,
                says: &[
                    "checkpoint.load_optim = false: moments, learning rate schedule and weight decay schedule begin anew at iteration 5",
                ],
            },
            Case {
                does: "changes the seed of the run",
                before: as_it_is,
                arguments: &["train", "notes.toml", "rng.seed=7"],
                code: 0,
                says: &["rng.seed 1234 -> 7", "random numbers go on from the checkpoint's seed 1234"],
            },
        ],
    );
}

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

/// A Hugging Face folder of a small Llama, with what belongs to it.
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
    for name in ["mine", "tokens"] {
        std::fs::create_dir(folder.join(name)).unwrap();
    }
    std::fs::write(folder.join("mine/config.json"), "{}").unwrap();
    std::fs::write(folder.join("mine/tokenizer.json"), "{}").unwrap();
    std::fs::write(folder.join("tokens/text.bin"), "mine").unwrap();
}

/// A row for a command that would write over what is not its own.
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
                &["ckpt/iter_0000002 was not made by this command", "--force"],
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
                &["tokenizer", "train", "notes/*.txt", "-o", "mine", "--vocab-size", "300"],
                &["mine/tokenizer.json was not made by this", "--force"],
            ),
            protected(
                as_it_is,
                &["tokenizer", "train", "notes", "-o", "notes", "--vocab-size", "300"],
                &["notes", "--force"],
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

#[test]
fn a_run_that_learned_nothing_is_not_done() {
    check(
        run_on_text(),
        &[
            Case {
                does: "trains with a learning rate of 1000",
                before: as_it_is,
                arguments: &[
                    "train",
                    "notes.toml",
                    "checkpoint.save=new",
                    "optimizer.lr=1000",
                    "optimizer.min_lr=1000",
                    "optimizer.clip_grad=0.0",
                    "rerun_state_machine.check_for_nan_in_loss=false",
                    "train.train_iters=60",
                ],
                code: 1,
                says: &["taught the model nothing", "last good checkpoint is new/iter_00000"],
            },
            Case {
                does: "keeps one checkpoint of such a run",
                before: as_it_is,
                arguments: &[
                    "train",
                    "notes.toml",
                    "checkpoint.save=new",
                    "checkpoint.most_recent_k=1",
                    "optimizer.lr=1000",
                    "optimizer.min_lr=1000",
                    "optimizer.clip_grad=0.0",
                    "rerun_state_machine.check_for_nan_in_loss=false",
                    "train.train_iters=60",
                ],
                code: 1,
                says: &["last good checkpoint is new/iter_00000"],
            },
        ],
    );
}

/// Sends SIGINT as soon as a run of this recipe has trained a few steps, and returns what it said and its exit code.
#[cfg(unix)]
fn interrupted(folder: &Path, arguments: &[&str]) -> (String, Option<i32>) {
    let log = std::fs::File::create(folder.join("log")).unwrap();
    let child = Command::new(program())
        .args([
            "train",
            "notes.toml",
            "checkpoint.save=new",
            "train.train_iters=1000000",
            "checkpoint.save_interval=null",
        ])
        .args(arguments)
        .current_dir(folder)
        .stdout(log.try_clone().unwrap())
        .stderr(log)
        .spawn()
        .expect("bridge starts");
    let metrics = folder.join("runs/notes/metrics.jsonl");
    let id = child.id().to_string();
    let mut child = child;
    let is_training = || std::fs::read_to_string(&metrics).unwrap_or_default().lines().count() > 8;
    while !is_training() && child.try_wait().unwrap().is_none() {
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    assert!(Command::new("kill").args(["-INT", &id]).status().unwrap().success());
    let status = child.wait().unwrap();
    (std::fs::read_to_string(folder.join("log")).unwrap(), status.code())
}

#[cfg(unix)]
#[test]
fn an_interrupted_run_says_at_once_what_follows() {
    for ranks in ["1", "2"] {
        let place = tempfile::tempdir().unwrap();
        copy(run_on_text(), place.path());
        let (text, code) = interrupted(place.path(), &["--ranks", ranks]);
        assert_eq!(code, Some(130), "{text}");
        assert!(text.contains("SIGINT: saving after this step, 0."), "{text}");
        assert!(text.contains("; Ctrl-C again to stop without saving"), "{text}");
        assert!(place.path().join("new/latest_checkpointed_iteration.txt").is_file(), "{text}");
    }
}
