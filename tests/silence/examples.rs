//! Changes in examples, templates and other models between a run and the one that resumes from its
//! checkpoint, and examples that teach something unwanted.

use super::*;

/// The sections of a recipe that trains on examples.
const TUNED: &str = r#"
[dataset]
kind = "finetuning"
dataset_root = "examples"
path_to_cache = "cache"
[tokenizer]
tokenizer_type = "HuggingFaceTokenizer"
tokenizer_model = "tok"
"#;

/// A template whose answers end with `[end]`.
const TEMPLATE: &str = "{% for m in messages %}[{{ m.role }}]{{ m.content }}[end]{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}";

fn write_lines(folder: &Path, name: &str, records: impl IntoIterator<Item = serde_json::Value>) {
    std::fs::create_dir_all(folder.join(name).parent().unwrap()).unwrap();
    let text: String = records.into_iter().map(|record| format!("{record}\n")).collect();
    std::fs::write(folder.join(name), text).unwrap();
}

fn conversation(number: usize, answer: serde_json::Value) -> serde_json::Value {
    serde_json::json!({ "messages": [{ "role": "user", "content": format!("line {number}") }, { "role": "assistant", "content": answer }] })
}

fn write_examples(folder: &Path, count: usize, answer: &str) {
    write_lines(folder, "examples/training.jsonl", (0..count).map(|number| conversation(number, answer.into())));
}

fn write_preferences(folder: &Path, chosen: &str, rejected: &str) {
    let pair = |number: usize| serde_json::json!({ "prompt": format!("line {number}"), "chosen": chosen, "rejected": rejected });
    write_lines(folder, "pairs/training.jsonl", (0..12).map(pair));
}

const DPO: [&str; 6] = [
    "dataset.dataset_root=pairs",
    "dataset.path_to_cache=pairs/cache",
    "checkpoint.pretrained_checkpoint=ckpt",
    "dpo.beta=0.1",
    "checkpoint.save=preferred",
    "name=preferred",
];

/// A folder with the run on text, one on examples, one on preferences and one with a teacher, each
/// stopped after four of eight iterations.
fn runs_on_examples() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let folder = tempfile::tempdir().unwrap().keep();
        copy(run_on_text(), &folder);
        copy(&folder.join("data/notes"), &folder.join("tok"));
        std::fs::write(folder.join("tok/chat_template.jinja"), TEMPLATE).unwrap();
        write_examples(&folder, 12, "a note");
        write_preferences(&folder, "a note", "a line");
        let begin = RECIPE.find("[dataset]").unwrap();
        let end = RECIPE.find("[checkpoint]").unwrap();
        let recipe = format!("{}{}{}", &RECIPE[..begin], TUNED, &RECIPE[end..]);
        let recipe = recipe.replace("\"notes\"", "\"tuned\"").replace("\"ckpt\"", "\"tuned\"");
        std::fs::write(folder.join("tuned.toml"), recipe.replace("seq_length = 32", "seq_length = 64")).unwrap();
        let teacher = ["distillation.teacher=ckpt", "checkpoint.save=taught", "name=taught"];
        for (recipe, more) in [("tuned.toml", &[][..]), ("tuned.toml", &DPO[..]), ("notes.toml", &teacher[..])] {
            let output = bridge(&folder, &[&["train", recipe, "train.exit_interval=4"][..], more].concat());
            assert!(output.status.success(), "{recipe} {more:?}: {}", said(&output));
        }
        folder
    })
}

fn other_answers(folder: &Path) {
    write_examples(folder, 12, "a word");
}

fn fewer_examples(folder: &Path) {
    write_examples(folder, 6, "a note");
}

fn other_template(folder: &Path) {
    std::fs::write(folder.join("tok/chat_template.jinja"), TEMPLATE.replace("[end]", "[stop]")).unwrap();
}

fn swapped_preferences(folder: &Path) {
    write_preferences(folder, "a line", "a note");
}

/// Another model in the place of the one that was trained on text.
fn other_model(folder: &Path) {
    let output = bridge(
        folder,
        &["train", "notes.toml", "name=other", "checkpoint.save=other", "rng.seed=5", "train.train_iters=4"],
    );
    assert!(output.status.success(), "{}", said(&output));
    std::fs::remove_dir_all(folder.join("ckpt")).unwrap();
    std::fs::rename(folder.join("other"), folder.join("ckpt")).unwrap();
}

/// A row for a run that resumes with a changed input, and must print the change.
fn resumed(before: fn(&Path), arguments: &'static [&'static str], says: &'static [&'static str]) -> Case {
    Case { does: "resumes with something else", before, arguments, code: 0, says }
}

const PREFER: &[&str] = &["train", "tuned.toml", DPO[0], DPO[1], DPO[2], DPO[3], DPO[4], DPO[5]];
const TEACH: &[&str] = &["train", "notes.toml", "distillation.teacher=ckpt", "checkpoint.save=taught", "name=taught"];

#[test]
fn a_resumed_run_says_what_else_it_reads_is_another() {
    const CHANGED: &str = "warning: the train examples have changed since the checkpoint of iteration 4: 12 of ";
    check(
        runs_on_examples(),
        &[
            resumed(other_answers, &["train", "tuned.toml"], &[CHANGED, "the run goes on with sample 16 of"]),
            resumed(fewer_examples, &["train", "tuned.toml"], &[CHANGED, " then, 6 of "]),
            resumed(fewer_examples, &["train", "tuned.toml", "--ranks", "2"], &[CHANGED, " then, 6 of "]),
            resumed(
                other_template,
                &["train", "tuned.toml"],
                &[
                    "warning: the chat template has changed since the checkpoint of iteration 4: checksum ",
                    "[end]",
                    "[stop]",
                ],
            ),
            resumed(swapped_preferences, PREFER, &[CHANGED]),
            resumed(
                other_model,
                PREFER,
                &["warning: the reference is another model since the checkpoint of iteration 4: "],
            ),
            resumed(
                other_model,
                TEACH,
                &["warning: the teacher is another model since the checkpoint of iteration 4: "],
            ),
            resumed(
                as_it_is,
                &["train", "notes.toml", "distillation.teacher=ckpt"],
                &["warning: distillation.teacher = \"ckpt\" is checkpoint.save, where the run saves itself"],
            ),
        ],
    );
}

#[test]
fn a_resumed_run_says_nothing_of_what_lies_elsewhere_or_is_newer() {
    let place = tempfile::tempdir().unwrap();
    copy(runs_on_examples(), place.path());
    std::fs::remove_dir_all(place.path().join("cache")).unwrap();
    write_examples(place.path(), 12, "a note");
    for arguments in [&["train", "tuned.toml"][..], PREFER, TEACH] {
        let output = bridge(place.path(), arguments);
        let text = said(&output);
        assert!(output.status.success(), "{text}");
        assert!(!text.contains("changed since") && !text.contains("is another model"), "{arguments:?}: {text}");
    }
}

fn empty_answers(folder: &Path) {
    let answer = |number: usize| if number.is_multiple_of(2) { "" } else { "a note" };
    let record = |number| serde_json::json!({ "prompt": format!("line {number}"), "completion": answer(number) });
    write_lines(folder, "examples/training.jsonl", (0..12).map(record));
}

fn answers_of_null(folder: &Path) {
    write_lines(folder, "examples/training.jsonl", (0..12).map(|number| conversation(number, serde_json::Value::Null)));
}

fn calls(folder: &Path) {
    let call = serde_json::json!([{ "type": "function", "function": { "name": "f", "arguments": "{}" } }]);
    let record = |number| {
        let mut record = conversation(number, serde_json::Value::Null);
        record["messages"][1]["tool_calls"] = call.clone();
        record
    };
    write_lines(folder, "examples/training.jsonl", (0..12).map(record));
}

fn trained_on(folder: &Path) {
    std::fs::copy(folder.join("examples/training.jsonl"), folder.join("examples/validation.jsonl")).unwrap();
}

fn no_preference(folder: &Path) {
    write_preferences(folder, "a note", "a note");
}

/// A row for a run on odd examples, which must print the oddity.
fn begun(before: fn(&Path), more: &'static [&'static str], says: &'static [&'static str]) -> Case {
    Case { does: "trains on odd examples", before, arguments: more, code: 0, says }
}

const NEW: [&str; 4] = ["train", "tuned.toml", "checkpoint.save=new", "name=new"];
const TUNE: &[&str] = &NEW;
const EVALUATE: &[&str] = &[NEW[0], NEW[1], NEW[2], NEW[3], "validation.eval_interval=4", "validation.eval_iters=1"];
const NO_PREFERENCE: &[&str] =
    &["train", "tuned.toml", DPO[0], DPO[1], DPO[2], DPO[3], "checkpoint.save=new", "name=new"];

#[test]
fn examples_that_teach_what_nobody_wants_are_said() {
    check(
        runs_on_examples(),
        &[
            begun(
                empty_answers,
                TUNE,
                &["warning: examples/training.jsonl: 12 train examples", "; 6 with an empty answer"],
            ),
            begun(answers_of_null, TUNE, &["; 12 with an empty answer"]),
            begun(calls, TUNE, &["; 12 with tool calls, which the chat template does not write"]),
            begun(trained_on, EVALUATE, &["warning: 12 of 12 valid examples are trained on, too"]),
            begun(
                as_it_is,
                EVALUATE,
                &["validation.eval_interval = 4, and there is no validation data: nothing is evaluated"],
            ),
            begun(no_preference, NO_PREFERENCE, &["; 12 with both answers the same, which teach nothing"]),
        ],
    );
}
