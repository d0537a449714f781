//! `bridge eval --tasks`, against the figures of lm-evaluation-harness on the same items
//! (`fixtures/tasks/make_tasks.py` made them).

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use bridge_tests::program;
use serde_json::Value;

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/tasks")
}

/// A folder with the golden Llama and a tokenizer for it, as `model`, and the tasks beside it.
fn folder() -> tempfile::TempDir {
    folder_of("llama")
}

/// The same with another golden model.
fn folder_of(golden: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("model");
    std::fs::create_dir(&model).unwrap();
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../bridge-models/tests/fixtures/golden").join(golden);
    for name in ["config.json", "model.safetensors"] {
        std::fs::copy(golden.join(name), model.join(name)).unwrap();
    }
    for name in ["tokenizer.json", "tokenizer_config.json"] {
        std::fs::copy(fixtures().join(name), model.join(name)).unwrap();
    }
    for name in ["choices.jsonl", "exact.jsonl"] {
        std::fs::copy(fixtures().join(name), folder.path().join(name)).unwrap();
    }
    folder
}

fn eval(folder: &Path, arguments: &[&str]) -> Output {
    let arguments = [&["eval", "model"], arguments].concat();
    Command::new(program()).args(arguments).current_dir(folder).output().expect("bridge starts")
}

fn json(output: &Output) -> Value {
    assert!(output.status.success(), "{}", text(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("one JSON object")
}

fn lines(path: &Path) -> Vec<Value> {
    std::fs::read_to_string(path).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn close(found: &Value, expected: &Value) -> bool {
    let [found, expected] = [found, expected].map(|value| value.as_f64().unwrap());
    (found - expected).abs() <= 1e-6 * expected.abs()
}

#[test]
fn scores_and_figures_are_those_of_the_harness() {
    let folder = folder();
    let harness: Value =
        serde_json::from_str(&std::fs::read_to_string(fixtures().join("harness.json")).unwrap()).unwrap();
    for batch in ["1", "5"] {
        let arguments = ["--tasks", "choices.jsonl", "exact.jsonl", "--log-samples", "log.jsonl"];
        let output = eval(folder.path(), &[&arguments[..], &["--json", "--micro-batch-size", batch]].concat());
        assert!(text(&output.stderr).contains("longer than the model's positions"), "{}", text(&output.stderr));
        let report = json(&output);
        let tasks = &report["tasks"];
        assert_eq!((&tasks["choices"]["items"], &tasks["exact"]["items"]), (&Value::from(11), &Value::from(10)));
        for (task, figure, of_harness) in [
            ("choices", "acc", "acc"),
            ("choices", "acc_norm", "acc_norm"),
            ("exact", "exact_match", "acc"),
            ("exact", "perplexity", "perplexity"),
        ] {
            let (found, expected) = (&tasks[task][figure], &harness["figures"][task][of_harness]);
            assert!(close(found, expected), "{task} {figure}: expected {expected}, found {found}");
        }
        let log = lines(&folder.path().join("log.jsonl"));
        for task in ["choices", "exact"] {
            let expected = harness["scores"][task].as_array().unwrap();
            let items: Vec<&Value> = log.iter().filter(|item| item["task"] == task).collect();
            assert_eq!(items.len(), expected.len());
            for (item, expected) in items.iter().zip(expected) {
                let answers = item["answers"].as_array().unwrap();
                assert_eq!(answers.len(), expected.as_array().unwrap().len());
                for (answer, expected) in answers.iter().zip(expected.as_array().unwrap()) {
                    assert!(close(&answer["log_likelihood"], &expected[0]), "{item}: expected {expected}");
                    assert_eq!(answer["is_greedy"], expected[1], "{item}");
                }
            }
        }
    }
}

#[test]
fn people_see_a_table() {
    let folder = folder();
    let output = eval(folder.path(), &["--tasks", "choices.jsonl", "exact.jsonl", "--max-samples", "4"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let shown = text(&output.stdout);
    let rows: Vec<Vec<&str>> = shown.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(rows[0], ["task", "items", "figure", "value", "stderr"]);
    assert_eq!((rows[1][..3].to_vec(), rows[2][0]), (vec!["choices", "4", "acc"], "acc_norm"));
    assert_eq!((rows[3][..3].to_vec(), rows[4][0]), (vec!["exact", "4", "exact_match"], "perplexity"));
}

#[test]
fn a_delimiter_and_a_first_token_change_what_is_scored() {
    let folder = folder();
    let perplexity = |arguments: &[&str]| {
        let report = json(&eval(folder.path(), &[&["--tasks", "exact.jsonl", "--json"], arguments].concat()));
        report["tasks"]["exact"]["perplexity"].as_f64().unwrap()
    };
    let plain = perplexity(&[]);
    assert!((perplexity(&["--target-delimiter", ": "]) - plain).abs() > 1.0);
    assert!((perplexity(&["--add-bos"]) - plain).abs() > 1.0);
}

/// lm-evaluation-harness forces the token for models whose `model_type` names Gemma.
#[test]
fn texts_of_gemma_begin_with_a_first_token() {
    let folder = folder_of("gemma3");
    let perplexity = |arguments: &[&str]| {
        let report = json(&eval(folder.path(), &[&["--tasks", "exact.jsonl", "--json"], arguments].concat()));
        report["tasks"]["exact"]["perplexity"].clone()
    };
    assert_eq!(perplexity(&[]), perplexity(&["--add-bos"]));
}

#[test]
fn lists_are_read_and_unused_fields_named() {
    let folder = folder();
    let items = "[{\"query\": \"a\",\n\"target\": \"b\", \"hint\": \"c\"}]";
    std::fs::write(folder.path().join("list.json"), items).unwrap();
    let output = eval(folder.path(), &["--tasks", "list.json", "--json"]);
    assert_eq!(json(&output)["tasks"]["list"]["items"], 1);
    assert!(text(&output.stderr).contains("fields that nothing used: `hint` (in 1)"), "{}", text(&output.stderr));
}

#[test]
fn tasks_that_cannot_be_evaluated_are_errors() {
    let folder = folder();
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    write("empty.jsonl", "\n");
    write("line.jsonl", "{\"query\": \"a\", \"target\": \"b\"}\n\n{\"query\": \"a\"}\n");
    write(
        "mixed.jsonl",
        "{\"query\": \"a\", \"target\": \"b\"}\n{\"query\": \"a\", \"choices\": [\"b\", \"c\"], \"gold\": 0}\n",
    );
    write("silent.jsonl", "{\"query\": \"\", \"target\": \"\\u00e9\", \"task\": \"t\"}\n");
    for (arguments, named) in [
        (&["--tasks", "nowhere.jsonl"][..], &["nowhere.jsonl"][..]),
        (&["--tasks", "empty.jsonl"], &["empty.jsonl", "expected items"]),
        (&["--tasks", "line.jsonl"], &["line.jsonl:3", "the right continuation"]),
        (&["--tasks", "mixed.jsonl"], &["mixed.jsonl:2", "mixed.jsonl:1"]),
        (&["--tasks", "exact.jsonl", "--text", "exact.jsonl"], &["--text"]),
        (&["--tasks", "exact.jsonl", "--split", "test"], &["--split"]),
        (&["--tasks", "exact.jsonl", "dataset.kind=mock"], &["dataset.kind=mock", "--tasks"]),
        (&["--add-bos"], &["--tasks"]),
        (&["--log-samples", "x"], &["--tasks"]),
        (&["--tasks", "exact.jsonl", "--log-samples", "nowhere/x"], &["nowhere/x"]),
    ] {
        let output = eval(folder.path(), arguments);
        let message = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {message}");
        assert!(named.iter().all(|name| message.contains(name)), "{arguments:?}: {message}");
    }
}
