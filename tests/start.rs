//! From a folder to a recipe and to a model that talks: `bridge init`: its recipes are trained,
//! evaluated, sampled and chatted with, by name and from other folders.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;

use bridge_tests::{program, root};
use serde_json::Value;

fn bridge_with(folder: &Path, arguments: &[&str], input: &str) -> Output {
    let mut command = Command::new(program());
    command.args(arguments).current_dir(folder).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("bridge starts");
    // A command that reads nothing may have ended.
    let _ = child.stdin.take().expect("a pipe").write_all(input.as_bytes());
    child.wait_with_output().expect("bridge ends")
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&[&output.stdout[..], &output.stderr].concat()).into_owned()
}

/// Runs `bridge` with nothing to read, and expects exit code 0. Returns its output.
fn bridge(folder: &Path, arguments: &[&str]) -> String {
    let output = bridge_with(folder, arguments, "");
    assert!(output.status.success(), "{arguments:?}: {}", said(&output));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn refused(folder: &Path, arguments: &[&str], names: &[&str]) {
    let output = bridge_with(folder, arguments, "");
    let text = said(&output);
    assert_eq!(output.status.code(), Some(2), "{arguments:?}: {text}");
    for name in names {
        assert!(text.contains(name), "{arguments:?}: no {name:?} in {text}");
    }
}

fn lines(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|_| panic!("not JSON: {line}"))).collect()
}

fn prose(number: usize) -> String {
    let words = ["river", "stone", "über", "lamp", "seven", "walks", "slowly", "home"];
    (0..90)
        .map(|i| {
            format!("{} {}{}", words[(i * number) % 8], words[(i + number) % 8], if i % 9 == 8 { ".\n\n" } else { " " })
        })
        .collect()
}

fn write(path: &Path, text: impl AsRef<[u8]>) {
    fs::create_dir_all(path.parent().expect("has a parent")).expect("made");
    fs::write(path, text).expect("written");
}

/// A folder in which a recipe for notes was made and trained a little, once.
fn trained() -> &'static Path {
    static FOLDER: OnceLock<tempfile::TempDir> = OnceLock::new();
    let folder = FOLDER.get_or_init(|| {
        let folder = tempfile::tempdir().expect("temporary folder");
        let notes = folder.path().join("my [nötes]");
        for number in 1..12 {
            write(&notes.join(format!("sub/{number}.md")), prose(number));
        }
        write(&notes.join("a.txt"), prose(20));
        write(&notes.join("picture.md"), b"\x89PNG\0\xff");
        write(&notes.join(".git/hidden.md"), prose(3));
        write(&notes.join("empty.md"), "");
        let told = bridge(folder.path(), &["init", "my [nötes]", "--size", "nano", "--name", "notes"]);
        for part in ["wrote notes.toml", "memory: ", "time: "] {
            assert!(told.contains(part), "no {part:?} in {told}");
        }
        bridge(folder.path(), &["config", "check", "notes.toml"]);
        bridge(folder.path(), &["train", "notes.toml", "train.train_iters=6", "scheduler.lr_warmup_iters=1"]);
        folder
    });
    folder.path()
}

#[test]
fn notes_become_a_recipe_that_trains() {
    let folder = trained();
    let recipe = fs::read_to_string(folder.join("notes.toml")).expect("written");
    // The recipe names skipped files.
    for part in ["picture.md", "empty.md", "**/*.md", "a.txt", "split = \"90,10,0\""] {
        assert!(recipe.contains(part), "no {part:?} in {recipe}");
    }
    assert!(!recipe.contains("hidden.md"), "{recipe}");
    let metrics = fs::read_to_string(folder.join("runs/notes/metrics.jsonl")).expect("logged");
    assert!(metrics.contains("\"iteration\":6") && metrics.contains("\"valid\""), "{metrics}");
    refused(folder, &["init", "my [nötes]", "--name", "notes"], &["notes.toml", "--force"]);
    assert_eq!(fs::read_to_string(folder.join("notes.toml")).expect("still there"), recipe);
    refused(folder, &["init", "my [nötes]", "--name", "notes", "--output", "other.toml"], &["runs/notes", "--force"]);
}

#[test]
fn what_cannot_be_trained_on_is_named() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let path = folder.path();
    fs::create_dir(path.join("empty")).expect("made");
    write(&path.join("tiny.txt"), "too short");
    write(&path.join("zip/a.gz"), [0x1f, 0x8b, 8, 0]);
    write(&path.join("chat.jsonl"), "{\"messages\": [{\"role\": \"user\", \"content\": \"hi\"}]}\n");
    write(&path.join("numbers.jsonl"), "{\"a\": 1, \"b\": 2}\n".repeat(100));
    write(&path.join("model/config.json"), "{\"model_type\": \"strange\"}");
    write(&path.join("text.txt"), prose(1));
    refused(path, &["init", "nowhere"], &["nowhere"]);
    refused(path, &["init", "empty"], &["empty", "expected text"]);
    refused(path, &["init", "tiny.txt"], &["tiny.txt", "9 bytes"]);
    refused(path, &["init", "zip"], &["compressed", "a.gz"]);
    refused(path, &["init", "chat.jsonl"], &["chat.jsonl", "examples", "--model"]);
    refused(path, &["init", "text.txt", "--kind", "chat"], &["--kind chat", "lists of messages"]);
    write(&path.join("likes.jsonl"), "{\"prompt\": \"a\", \"chosen\": \"b\", \"rejected\": \"c\"}\n");
    refused(path, &["init", "likes.jsonl"], &["likes.jsonl", "[dpo]"]);
    // If plain text outweighs examples, the folder counts as text, and the error explains how to
    // use the examples.
    write(&path.join("both/notes.md"), prose(1).repeat(3));
    write(&path.join("both/a.jsonl"), "{\"a\": 1}\n");
    write(&path.join("both/talks.jsonl"), "{\"messages\": [{\"role\": \"user\", \"content\": \"hi\"}]}\n");
    for arguments in [&["init", "both"][..], &["init", "both", "--kind", "text"]] {
        refused(path, arguments, &["talks.jsonl", "lists of messages", "--kind chat"]);
    }
    fs::remove_file(path.join("both/a.jsonl")).expect("removed");
    write(&path.join("both/talks.jsonl"), "{\"prompt\": \"a\", \"completion\": \"bcd\"}\n");
    refused(path, &["init", "both"], &["talks.jsonl", "prompts with their answers", "--kind chat", "--kind text"]);
    write(&path.join("typo.jsonl"), "{\"instruction\": \"do this\", \"ouput\": \"b\"}\n".repeat(90));
    refused(path, &["init", "typo.jsonl"], &["typo.jsonl", "\"instruction\" is a field of examples", "--kind text"]);
    let talk = "{\"messages\": [{\"role\": \"user\", \"content\": \"hi\"}]}\n";
    write(&path.join("broken.jsonl"), format!("{talk}{talk}{{oops\n"));
    for arguments in [&["init", "broken.jsonl"][..], &["init", "broken.jsonl", "--kind", "chat"]] {
        refused(path, arguments, &["broken.jsonl:3: not JSON: key must be a string at column 2"]);
    }
    write(&path.join("rows.csv"), "prompt,completion\n".repeat(90));
    refused(path, &["init", "rows.csv"], &["rows.csv", "tables"]);
    refused(path, &["init", "numbers.jsonl"], &["numbers.jsonl", "a, b"]);
    refused(path, &["init", "text.txt", "--model", "model"], &["config.json", "strange"]);
    refused(path, &["init", "text.txt", "--size", "huge"], &["nano"]);
    refused(path, &["init"], &["expected files or folders"]);
    assert!(
        !path.join("runs").exists()
            && fs::read_dir(path)
                .expect("readable")
                .all(|e| e.expect("an entry").path().extension() != Some("toml".as_ref()))
    );
}

#[test]
fn one_long_file_is_cut_and_split() {
    let folder = tempfile::tempdir().expect("temporary folder");
    write(&folder.path().join("book.txt"), (1..40).map(prose).collect::<String>());
    let recipe = root().join("recipes/tiny.toml").display().to_string();
    let data = ["dataset.kind=gpt", "dataset.source=book.txt", "dataset.split=\"80,10,10\"", "model.vocab_size=null"];
    let tokenizer =
        ["tokenizer.tokenizer_type=ByteLevelBPE", "tokenizer.vocab_size=null", "tokenizer.bpe_vocab_size=300"];
    let more = ["train.train_iters=2", "validation.eval_iters=1", "scheduler.lr_warmup_iters=0"];
    let told = bridge(folder.path(), &[&["train", &recipe][..], &data, &tokenizer, &more].concat());
    assert!(told.contains("packed 1 documents") && told.contains("cut at blank lines into"), "{told}");
    assert!(told.contains("validation set") && told.contains("test set"), "{told}");
    let shown = bridge(
        folder.path(),
        &[&["data", "show", &recipe, "--split", "valid", "--count", "1"][..], &data, &tokenizer, &more].concat(),
    );
    assert!(shown.contains("--- sample 0: 65 tokens, 64 count for the loss ---") && shown.contains('⟦'), "{shown}");
}

#[test]
fn runs_are_found_by_name_and_from_other_folders() {
    let folder = trained();
    let elsewhere = tempfile::tempdir().expect("temporary folder");
    let generate = |from: &Path, model: &str| {
        bridge(from, &["generate", model, "--prompt", "river", "--greedy", "--max-tokens", "5"])
    };
    let expected = generate(folder, "notes");
    for model in ["runs/notes", "runs/notes/checkpoints", "runs/notes/checkpoints/iter_0000006"] {
        assert_eq!(generate(folder, model), expected, "{model}");
        let absolute = folder.join(model).display().to_string();
        assert_eq!(generate(elsewhere.path(), &absolute), expected, "{absolute}");
    }
    assert_eq!(generate(&folder.join("my [nötes]"), "notes"), expected);
    refused(folder, &["generate", "nots"], &["nots", "notes"]);
    let run = folder.join("runs/notes").display().to_string();
    let evaluate =
        |from: &Path, model: &str| lines(&bridge(from, &["eval", model, "--max-samples", "2", "--json"])).remove(0);
    assert_eq!(evaluate(elsewhere.path(), &run), evaluate(folder, "notes"));
    assert!(
        fs::read_dir(elsewhere.path()).expect("readable").next().is_none(),
        "evaluation wrote into its working directory"
    );
}

#[test]
fn prompts_and_samples_are_as_many_as_asked_for() {
    let folder = trained();
    let options = ["--max-tokens", "6", "--json"];
    let generate = |more: &[&str]| lines(&bridge(folder, &[&["generate", "notes"][..], &options, more].concat()));
    let all = generate(&["--prompt", "river", "--prompt", "stone", "--num-samples", "2", "--seed", "7"]);
    let place: Vec<_> =
        all.iter().map(|line| (line["prompt"].as_str().expect("a prompt"), line["sample"].as_u64())).collect();
    assert_eq!(place, [("river", Some(0)), ("river", Some(1)), ("stone", Some(0)), ("stone", Some(1))]);
    assert_eq!(generate(&["--prompt", "stone", "--seed", "8"])[0]["text"], all[3]["text"]);
    let piped =
        bridge_with(folder, &[&["generate", "notes", "--seed", "7"][..], &options].concat(), "river\n\nstone\n");
    let piped = lines(&String::from_utf8_lossy(&piped.stdout));
    assert_eq!([&piped[0]["text"], &piped[1]["text"]], [&all[0]["text"], &all[2]["text"]]);
    let whole =
        bridge_with(folder, &[&["generate", "notes", "--whole-input"][..], &options].concat(), "river\n\nstone\n");
    assert_eq!(lines(&String::from_utf8_lossy(&whole.stdout))[0]["prompt"], "river\n\nstone\n");
    let text = all[0]["text"].as_str().expect("text");
    let second = text.chars().nth(1).expect("two characters").to_string();
    let stopped = &generate(&["--prompt", "river", "--seed", "7", "--stop", &second])[0];
    assert_eq!((stopped["text"].as_str(), stopped["end"].as_str()), (text.split(&second).next(), Some("stop")));
    refused(folder, &["generate", "notes", "--prompt", "-"], &["standard input"]);
}

#[test]
fn conversations_go_through_the_template() {
    let folder = trained();
    let said_by = |model: &str, more: &[&str], input: &str| {
        let output =
            bridge_with(folder, &[&["chat", model, "--max-tokens", "3", "--greedy"][..], more].concat(), input);
        assert!(output.status.success(), "{}", said(&output));
        (lines(&String::from_utf8_lossy(&output.stdout)), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    // Without a template, text is continued, with a note.
    let (answers, notes) = said_by("notes", &["--json"], "river\n/exit\nstone\n");
    assert_eq!(answers.len(), 1);
    assert!(notes.contains("no chat template"), "{notes}");
    refused(folder, &["chat", "notes", "--system", "x"], &["--system"]);
    bridge(folder, &["convert", "export", "notes", "talker"]);
    let template = "{% for m in messages %}{{ m.role[:1] }} {{ m.content }}\n{% endfor %}{% if add_generation_prompt %}a {% endif %}";
    write(&folder.join("talker/chat_template.jinja"), template);
    let (answers, notes) =
        said_by("talker", &["--json", "--system", "home"], "river\nstone\n/reset\nriver\n/nothing\n");
    assert_eq!(answers.len(), 3, "{answers:?}");
    assert_eq!(answers[0]["content"], answers[2]["content"]);
    assert!(notes.contains("begins anew") && notes.contains("/nothing"), "{notes}");
    // The prompt is the history as the template renders it.
    let answer = answers[0]["content"].as_str().expect("text");
    let history = format!("s home\nu river\na {answer}\nu stone\na ");
    let plain =
        bridge(folder, &["generate", "talker", "--prompt", &history, "--max-tokens", "3", "--greedy", "--json"]);
    assert_eq!(lines(&plain)[0]["text"], answers[1]["content"]);
}

#[test]
fn examples_become_a_recipe_that_fine_tunes() {
    let place = tempfile::tempdir().expect("temporary folder");
    let folder = place.path();
    let model = folder.join("base").display().to_string();
    bridge(trained(), &["convert", "export", "notes", &model]);
    let part =
        |number: usize, from: usize, count: usize| prose(number).chars().skip(from).take(count).collect::<String>();
    let turns = |number: usize| {
        serde_json::json!({ "messages": [
            { "role": "user", "content": part(number, 0, 40) },
            { "role": "assistant", "content": part(number + 3, 0, 60) },
        ] })
    };
    write(&folder.join("talks.jsonl"), (0..60).map(|number| format!("{}\n", turns(number))).collect::<String>());
    let init = ["init", "talks.jsonl", "--model", "base", "--time", "1m"];
    refused(folder, &init, &["base", "no chat template", "chat_template.jinja"]);
    assert!(!folder.join("data").exists() && !folder.join("runs").exists(), "nothing is left of what was refused");
    let template = "{% for m in messages %}[{{ m.role }}]{% if m.role == 'assistant' %}{% generation %}{{ m.content }}<|endoftext|>\
                    {% endgeneration %}{% else %}{{ m.content }}{% endif %}{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}";
    write(&folder.join("base/chat_template.jinja"), template);
    let told = bridge(folder, &init);
    for part in ["wrote talks.toml", "examples: 57 to train on, 3 held out", "memory: ", "time: ", " evaluations of "] {
        assert!(told.contains(part), "no {part:?} in {told}");
    }
    // Problems are those of the user's files: the recipe and its splits are not kept.
    write(&folder.join("bad.jsonl"), "{\"messages\": [{\"role\": \"user\", \"content\": \"hi\"}]}\n");
    refused(
        folder,
        &["init", "bad.jsonl", "--model", "base"],
        &["bad.jsonl: no conversation has an answer", "(1 read)"],
    );
    let late = (0..60).map(|number| if number == 54 { "{oops\n".to_owned() } else { format!("{}\n", turns(number)) });
    write(&folder.join("late.jsonl"), late.collect::<String>());
    refused(folder, &["init", "late.jsonl", "--model", "base"], &["late.jsonl:55: not JSON: "]);
    assert!(!folder.join("data/bad").exists() && !folder.join("data/late").exists());
    let recipe = fs::read_to_string(folder.join("talks.toml")).expect("written");
    for part in ["[peft]", "kind = \"finetuning\"", "# most tokens of a sample", "# samples at once: all of a step"] {
        assert!(recipe.contains(part), "no {part:?} in {recipe}");
    }
    bridge(folder, &["config", "check", "talks.toml"]);
    bridge(folder, &["train", "talks.toml", "train.train_iters=6", "scheduler.lr_warmup_iters=1"]);
    let metrics = fs::read_to_string(folder.join("runs/talks/metrics.jsonl")).expect("logged");
    assert!(metrics.contains("\"iteration\":6") && metrics.contains("\"valid\""), "{metrics}");
    let answer = bridge_with(folder, &["chat", "talks", "--max-tokens", "3", "--greedy"], "hello\n");
    assert!(answer.status.success(), "{}", said(&answer));
    refused(folder, &[&init[..], &["--force", "--kind", "text"]].concat(), &["talks.jsonl", "lists of messages"]);

    // Prompts with their answers need no template, and a folder with splits is used as it is.
    fs::remove_file(folder.join("base/chat_template.jinja")).expect("removed");
    let pair = |number: usize| serde_json::json!({ "prompt": part(number, 0, 30), "completion": part(number, 30, 40) });
    let pairs =
        |numbers: std::ops::Range<usize>| numbers.map(|number| format!("{}\n", pair(number))).collect::<String>();
    write(&folder.join("pairs/train.jsonl"), pairs(0..40));
    write(&folder.join("pairs/val.jsonl"), pairs(40..48));
    write(&folder.join("pairs/README.md"), "About these.");
    let told = bridge(folder, &["init", "pairs", "--model", "base", "--time", "1m"]);
    assert!(told.contains("examples: 40 to train on, 8 held out"), "{told}");
    assert!(!folder.join("data/pairs/examples").exists(), "no copy is made");
    bridge(folder, &["train", "pairs.toml", "train.train_iters=2", "scheduler.lr_warmup_iters=1"]);
    let mut left: Vec<_> =
        fs::read_dir(folder.join("pairs")).expect("listed").map(|e| e.expect("an entry").file_name()).collect();
    left.sort();
    assert_eq!(left, ["README.md", "train.jsonl", "val.jsonl"], "nothing is written beside the examples");
}

#[test]
fn conversations_are_rendered_as_ids() {
    let fixtures = root().join("bridge-data/tests/fixtures/chat");
    for name in ["turns", "turns_unmarked", "headers", "inst", "thinks"] {
        let (tokenizer, cases) = (fixtures.join(name).display().to_string(), fixtures.join(name).join("cases.jsonl"));
        let rendered = lines(&bridge(root(), &["data", "render", &tokenizer, &cases.display().to_string(), "--json"]));
        let expected = lines(&fs::read_to_string(&cases).expect("cases"));
        assert_eq!(rendered.len(), expected.len());
        for (found, case) in rendered.iter().zip(&expected) {
            match case["error"].as_str() {
                Some(reason) => {
                    assert!(found["error"].as_str().is_some_and(|error| error.contains(reason)), "{name}: {found}")
                }
                None => assert_eq!(
                    (&found["ids"], &found["assistant_mask"]),
                    (&case["ids"], &case["assistant_mask"]),
                    "{name}"
                ),
            }
        }
    }
    let chat = fixtures.join("turns");
    let (tokenizer, cases) = (chat.display().to_string(), chat.join("cases.jsonl"));
    let shown = bridge(root(), &["data", "render", &tokenizer, &cases.display().to_string()]);
    assert!(shown.contains("⟦<|im_start|>user") && shown.contains("⟧The capital of France is Paris."), "{shown}");
}

#[test]
fn a_trained_model_continues_and_improves() {
    let folder = trained();
    bridge(folder, &["convert", "export", "notes", "base-model"]);
    let told = bridge(folder, &["init", "my [nötes]", "--model", "base-model", "--name", "more", "--time", "1m"]);
    assert!(told.contains("wrote more.toml"), "{told}");
    let recipe = fs::read_to_string(folder.join("more.toml")).expect("written");
    for part in ["lr = 5e-5", "pretrained_checkpoint = ", "num_layers = 2", "base-model"] {
        assert!(recipe.contains(part), "no {part:?} in {recipe}");
    }
    let loss = |model: &str| {
        let told = bridge(folder, &["eval", model, "--recipe", "more.toml", "--json"]);
        lines(&told)[0]["loss"].as_f64().expect("a loss")
    };
    let before = loss("base-model");
    bridge(folder, &["train", "more.toml", "train.train_iters=50", "checkpoint.save_interval=50"]);
    let after = loss("more");
    assert!(after < before, "{before} became {after}");
}
