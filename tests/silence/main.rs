//! Silent harm to a run, a checkpoint or a file: each row is a user's action, and the output and
//! exit code that Bridge must give.

mod endings;
mod examples;
mod files;
mod newcomers;
mod resume;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use bridge_tests::{copy, program};

/// A thing that a user does in a folder with a run.
struct Case {
    /// Description for messages.
    does: &'static str,
    /// Preparation of the folder.
    before: fn(&Path),
    /// The arguments of `bridge`.
    arguments: &'static [&'static str],
    /// The exit code.
    code: i32,
    /// Texts that standard output and error must contain.
    says: &'static [&'static str],
}

/// No preparation.
fn as_it_is(_: &Path) {}

fn bridge(folder: &Path, arguments: &[&str]) -> Output {
    Command::new(program()).args(arguments).current_dir(folder).output().expect("bridge starts")
}

fn said(output: &Output) -> String {
    [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text).into_owned()).concat()
}

/// Runs each case in a copy of `folder`, and fails with the output of all failed cases.
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
