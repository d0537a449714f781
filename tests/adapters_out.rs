//! Adapters that are trained here, written in `peft`'s format and merged: all three compute the
//! same.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use bridge_core::model::ModelChunk;
use bridge_models::adapters::PeftAdapter;
use bridge_models::huggingface::HfModel;
use bridge_tests::{program, root};
use burn::tensor::{Device, Int, Tensor, TensorData};

fn bridge(folder: &Path, arguments: &[&str]) -> Result<String, String> {
    let output = Command::new(program()).args(arguments).current_dir(folder).output().expect("bridge starts");
    let said = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    if output.status.success() { Ok(said) } else { Err(said) }
}

fn logits(chunk: Box<dyn ModelChunk>) -> Vec<f32> {
    let ids: Vec<i64> = (0..20).map(|place| place * 7 % 150).collect();
    let tokens_bt = Tensor::<2, Int>::from_data(TensorData::new(ids, [1, 20]), &Device::flex());
    let chunk = chunk.inference();
    let logits_btv = chunk.logits(tokens_bt, &mut chunk.new_state()).unwrap();
    logits_btv.into_data().try_into_vec().unwrap()
}

#[track_caller]
fn assert_near(found: &[f32], expected: &[f32], what: &str) {
    let largest = expected.iter().fold(0.0_f32, |largest, value| largest.max(value.abs()));
    for (a, b) in found.iter().zip(expected) {
        assert!((a - b).abs() <= 1e-5 * largest, "{what}: {a}, expected {b}, of at most {largest}");
    }
}

/// Trains an adapter of the base of a golden folder: names of the base, and settings of `[peft]`.
fn trained(golden: &str, peft: &[&str]) -> (tempfile::TempDir, String) {
    let folder = tempfile::tempdir().unwrap();
    let base = root().join("bridge-models/tests/fixtures/peft").join(golden).join("base");
    let base = base.to_str().unwrap().to_owned();
    bridge(folder.path(), &["convert", "import", &base, "imported"]).unwrap();
    std::fs::copy(folder.path().join("imported/iter_0000000/run_config.toml"), folder.path().join("recipe.toml"))
        .unwrap();
    // From the folder itself: the run imports it.
    let from = format!("checkpoint.pretrained_checkpoint={base}");
    let common = [
        from.as_str(),
        "name=adapted",
        "checkpoint.save=saved",
        "train.train_iters=2",
        "train.global_batch_size=2",
        "train.micro_batch_size=1",
        "train.num_threads=1",
        "validation.eval_iters=0",
        "scheduler.lr_warmup_iters=0",
        "optimizer.lr=1e-2",
        "tokenizer.tokenizer_type=NullTokenizer",
        "tokenizer.vocab_size=159",
        "dataset.kind=mock",
        "model.hidden_dropout=0.0",
        "model.attention_dropout=0.0",
        "logger.progress=none",
        "peft.dim=4",
        "peft.alpha=6",
        "peft.lora_B_init_method=normal",
    ];
    let all = [&["train", "recipe.toml"], &common[..], peft].concat();
    bridge(folder.path(), &all).unwrap();
    (folder, base)
}

#[test]
fn adapters_are_written_in_pefts_format_and_merged_alike() {
    for (golden, peft) in [
        ("lora", &["peft.target_modules=[\"linear_qkv\", \"*.layers.1.mlp.*\"]"][..]),
        ("lora", &["peft.kind=dora", "peft.target_modules=[]"]),
        ("lora", &["peft.modules_to_save=[\"embed_tokens\", \"output_layer\", \"final_layernorm\"]"]),
        ("gemma2_dora", &["peft.modules_to_save=[\"embedding\"]"]),
        ("gpt_neox", &["peft.modules_to_save=[\"lm_head\", \"*.layers.0.mlp.linear_fc2\"]"]),
        ("qwen2_patterns", &["peft.kind=dora", "peft.canonical_mapping={linear_qkv = \"linear_q, linear_v\"}"]),
        ("gpt2_dora", &["peft.kind=dora", "peft.target_modules=[\"linear_q\", \"linear_v\", \"linear_fc2\"]"]),
        ("phi3_dora", &["peft.target_modules=[\"linear_k\", \"linear_fc1_up\"]"]),
    ] {
        let what = format!("{golden} {peft:?}");
        let (folder, base) = trained(golden, peft);
        let folder = folder.path();
        bridge(folder, &["convert", "export", "saved", "adapter"]).unwrap();
        // The command compares logits itself, and fails where they differ.
        let said = bridge(folder, &["convert", "merge", "saved", "merged"]).unwrap();
        assert!(said.contains("logits differ by"), "{said}");
        bridge(folder, &["convert", "export", "merged", "exported"]).unwrap();
        let card = std::fs::read_to_string(folder.join("exported/README.md")).unwrap();
        for part in ["base_model: \"base\"", "of rank 4, alpha 6, merged into the base model", "[peft]", "dim = 4"] {
            assert!(card.contains(part), "{what}: no {part:?} in {card}");
        }
        let device = Device::flex().autodiff();
        let base = HfModel::open(Path::new(&base)).unwrap();
        let adapter = PeftAdapter::open(&folder.join("adapter"), &base).unwrap();
        let adapted = logits(adapter.build(&base, &device).unwrap());
        let merged = HfModel::open(&folder.join("exported")).unwrap();
        assert_near(&logits(merged.build(&device).unwrap()), &adapted, &what);
        let of_base = logits(base.build(&device).unwrap());
        assert!(of_base.iter().zip(&adapted).any(|(a, b)| (a - b).abs() > 1e-3), "{what}: the adapter does nothing");
    }
}

#[test]
fn an_adapter_is_no_whole_model_and_needs_its_base() {
    let (folder, base) = trained("lora", &[]);
    let folder = folder.path();
    let error = bridge(folder, &["convert", "export", "saved", "model.gguf"]).unwrap_err();
    assert!(error.contains("merge it first"), "{error}");
    let error = bridge(folder, &["convert", "merge", "imported", "merged"]).unwrap_err();
    assert!(error.contains("expected a checkpoint of an adapter"), "{error}");
    let named = |folder_name: &str, more: &[&str]| {
        bridge(folder, &[&["convert", "export", "saved", folder_name], more].concat()).unwrap();
        let text = std::fs::read_to_string(folder.join(folder_name).join("adapter_config.json")).unwrap();
        serde_json::from_str::<serde_json::Value>(&text).unwrap()["base_model_name_or_path"].clone()
    };
    assert_eq!(named("adapter", &[]), base.as_str());
    assert_eq!(named("other", &["--base", "maker/model"]), "maker/model");
    let error = bridge(folder, &["convert", "export", "imported", "whole", "--base", "maker/model"]).unwrap_err();
    assert!(error.contains("--base: imported is a whole model"), "{error}");
    // A resumed run makes its base again; without one there is nothing to read.
    std::fs::remove_dir_all(folder.join("runs/adapted/imported")).unwrap();
    let error = bridge(folder, &["convert", "export", "saved", "adapter"]).unwrap_err();
    assert!(error.contains("expected its base in") && error.contains("convert import"), "{error}");
}

const PROMPT: [&str; 6] = ["--prompt", "3 1 4 1 5", "--greedy", "--max-tokens=12", "--prompt", "9 2 6"];

#[test]
fn commands_compute_with_the_adapter_wherever_its_base_is() {
    let (folder, base) = trained("lora", &["peft.kind=dora"]);
    let folder = folder.path();
    // Each command writes over its own results.
    for _ in 0..2 {
        bridge(folder, &["convert", "export", "saved", "adapter"]).unwrap();
        bridge(folder, &["convert", "merge", "saved", "merged"]).unwrap();
        bridge(folder, &["convert", "export", "merged", "exported"]).unwrap();
    }
    let generated = |model: &[&str]| bridge(folder, &[&["generate"], model, &PROMPT].concat());
    let expected = generated(&["merged"]).unwrap();
    assert_eq!(generated(&["saved"]).unwrap(), expected);
    assert_eq!(generated(&["saved", "--no-state"]).unwrap(), expected);
    assert_eq!(generated(&["imported", "--adapter", "saved"]).unwrap(), expected);
    let answers = |model: &[&str]| {
        let items = r#"{"context": "3 1 4", "choices": [" 1", " 5", " 9"], "gold": 1}"#;
        std::fs::write(folder.join("items.jsonl"), items).unwrap();
        let scored = ["--tasks", "items.jsonl", "--log-samples", "scored.jsonl", "--json"];
        bridge(folder, &[&["eval"], model, &scored].concat()).unwrap();
        std::fs::read_to_string(folder.join("scored.jsonl")).unwrap()
    };
    let likelihoods = |text: String| -> Vec<f32> {
        let item: serde_json::Value = serde_json::from_str(text.lines().next().unwrap()).unwrap();
        let answers = item["answers"].as_array().unwrap().iter();
        answers.map(|answer| answer["log_likelihood"].as_f64().unwrap() as f32).collect()
    };
    let expected = likelihoods(answers(&["merged"]));
    assert_near(&likelihoods(answers(&["saved"])), &expected, "tasks");
    let losses = |model: &[&str]| -> Vec<f32> {
        let said =
            bridge(folder, &[&["eval"], model, &["--json", "--split=train", "--max-samples=5"]].concat()).unwrap();
        let report = said.lines().find(|line| line.starts_with('{')).unwrap_or_else(|| panic!("{said}"));
        let report: serde_json::Value = serde_json::from_str(report).unwrap();
        vec![report["loss"].as_f64().unwrap() as f32]
    };
    let recipe = "saved/iter_0000002/run_config.toml";
    let expected = losses(&["merged"]);
    for model in [&["saved"][..], &[&base, "--adapter", "adapter", "--recipe", recipe]] {
        assert_near(&losses(model), &expected, &format!("{model:?}"));
    }
    assert_ne!(losses(&["imported", "--recipe", recipe]), expected, "the adapter does nothing");
    // A base elsewhere is compared with the one that the adapter was trained on.
    std::fs::rename(folder.join("runs/adapted/imported"), folder.join("moved")).unwrap();
    let error = generated(&["saved"]).unwrap_err();
    assert!(error.contains("expected its base in") && error.contains("--adapter"), "{error}");
    generated(&["moved", "--adapter", "saved"]).unwrap();
    for (model, adapter, expected) in [
        ("merged", "saved", "expected the base of the adapter"),
        ("imported", "adapter", "expected a Hugging Face folder"),
        (&base, "saved", "expected the checkpoint that it was trained on"),
        ("imported", "merged", "expected an adapter"),
    ] {
        let error = generated(&[model, "--adapter", adapter]).unwrap_err();
        assert!(error.contains(expected), "{model} {adapter}: {error}");
    }
}

/// The lines that are JSON objects.
fn objects(said: &str) -> Vec<serde_json::Value> {
    said.lines().filter(|line| line.starts_with('{')).map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Runs `bridge chat` on this input, and returns the answers.
fn answers_of(folder: &Path, model: &[&str], input: &str) -> Vec<String> {
    let mut chat = Command::new(program());
    chat.arg("chat").args(model).args(["--greedy", "--max-tokens=7", "--json"]).current_dir(folder);
    chat.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut running = chat.spawn().unwrap();
    running.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = running.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
}

#[test]
fn commands_take_several_adapters_of_one_base() {
    let (folder, _) = trained("lora", &["peft.kind=dora"]);
    let (other, _) = trained("lora", &["peft.target_modules=[\"linear_fc1\", \"linear_qkv\"]"]);
    let (folder, other) = (folder.path(), other.path().to_str().unwrap().to_owned());
    bridge(folder, &["convert", "export", "saved", "adapter"]).unwrap();
    bridge(folder, &["convert", "export", &format!("{other}/saved"), "other"]).unwrap();
    let prompts = ["3 1 4 1 5", "9 2 6", "3 1 4 1 5", "3 1 4 1 5"];
    let text = |model: &[&str], prompt: &str| -> String {
        let said = bridge(
            folder,
            &[&["generate"], model, &["--prompt", prompt, "--greedy", "--max-tokens=12", "--json"]].concat(),
        );
        objects(&said.unwrap())[0]["text"].as_str().unwrap().to_owned()
    };
    // Checkpoints: folders have no tokenizer here, and those of `peft` are the library's tests.
    let [base, one, two] = ["imported", "saved", &format!("{other}/saved")].map(str::to_owned);
    let named = [format!("one={one}"), format!("two={two}")];
    let several = [base.as_str(), "--adapter", &named[0], "--adapter", &named[1]];
    // The base itself has no tokenizer; that it computes as alone, the library's tests show.
    let of_base = [&several[..], &["--use", "base"]].concat();
    let (with_one, with_two) = ([base.as_str(), "--adapter", &one], [base.as_str(), "--adapter", &two]);
    // Each row with its adapter, as alone.
    let rows = prompts.iter().flat_map(|prompt| ["--prompt", *prompt]);
    let rows: Vec<&str> = rows.chain(["--use", "two", "--use", "one", "--use", "one", "--use", "base"]).collect();
    let ends = ["--greedy", "--max-tokens=12", "--json"];
    let said = bridge(folder, &[&["generate"], &several[..], &rows, &ends].concat()).unwrap();
    let found = objects(&said);
    let names: Vec<&str> = found.iter().map(|row| row["adapter"].as_str().unwrap()).collect();
    assert_eq!(names, ["two", "one", "one", "base"]);
    let alone: [&[&str]; 4] = [&with_two, &with_one, &with_one, &of_base];
    for ((row, prompt), model) in found.iter().zip(prompts).zip(alone) {
        assert_eq!(row["text"], text(model, prompt), "{model:?} {prompt}");
    }
    let distinct: std::collections::BTreeSet<&str> =
        [0, 2, 3].iter().map(|row| found[*row]["text"].as_str().unwrap()).collect();
    assert!(distinct.len() >= 2, "{found:?}");
    // A conversation that changes the adapter on its way.
    let lines = "3 1 4\n/adapter two\n/reset\n3 1 4\n/adapter nobody\n/adapter base\n/reset\n3 1 4\n";
    let found = answers_of(folder, &[&several[..], &["--use", "one"]].concat(), lines);
    let alone: [&[&str]; 3] = [&with_one, &with_two, &of_base];
    assert_eq!(found, alone.map(|model| answers_of(folder, model, "3 1 4\n").remove(0)));
    // Tasks.
    let items = r#"{"context": "3 1 4", "choices": [" 1", " 5", " 9"], "gold": 1}"#;
    std::fs::write(folder.join("items.jsonl"), items).unwrap();
    let scores = |model: &[&str]| {
        let scored = ["--tasks", "items.jsonl", "--log-samples", "scored.jsonl"];
        bridge(folder, &[&["eval"], model, &scored].concat()).unwrap();
        std::fs::read_to_string(folder.join("scored.jsonl")).unwrap()
    };
    assert_eq!(scores(&[&several[..], &["--use", "two"]].concat()), scores(&with_two));
    assert_ne!(scores(&[&several[..], &["--use", "base"]].concat()), scores(&with_two));
    let refused = |arguments: &[&str]| bridge(folder, &[&["generate", "imported"], arguments].concat()).unwrap_err();
    let (one, two) = ("one=saved", format!("two={other}/saved"));
    for (arguments, expected) in [
        (&["--adapter", one, "--adapter", &two][..], "expected --use NAME, which says which of `one`, `two`, `base`"),
        (&["--adapter", one, "--adapter", &two, "--use", "three"], "--use three: expected one of `one`, `two`, `base`"),
        (&["--adapter", one, "--adapter", "saved"], "expected NAME=saved"),
        (&["--adapter", one, "--adapter", "one=saved"], "another adapter is called `one`"),
        (&["--adapter", "base=saved"], "`base` is the name of the model without"),
        (&["--adapter", one, "--adapter", "two=other"], "expected a Hugging Face folder"),
        (
            &["--adapter", one, "--prompt=1", "--prompt=2", "--prompt=3", "--use=one", "--use=one"],
            "one for each of 3 prompts",
        ),
        (&["--use", "one"], "expected adapters with names"),
    ] {
        let error = refused(arguments);
        assert!(error.contains(expected), "{arguments:?}: {error}");
    }
}

#[test]
fn runs_that_measure_draw_a_base() {
    let (folder, _) = trained("lora", &["peft.kind=dora"]);
    let recipe = "saved/iter_0000002/run_config.toml";
    // The command exits with 1 where parameters, states or messages are not those of the plan.
    bridge(folder.path(), &["plan", recipe, "--measure", "model.vocab_size=160"]).unwrap();
    let said = bridge(folder.path(), &["train", recipe, "--dry-run", "checkpoint.save=dry"]).unwrap();
    assert!(said.contains("tokens"), "{said}");
    assert!(!folder.path().join("dry").exists());
}
