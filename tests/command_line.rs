//! The command line as a user meets it: arguments that are checked, errors that name the problem,
//! exit codes, names of data.

use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use bridge_tests::{program, recipe};
use serde_json::Value;

fn command(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(program());
    command.args(arguments).current_dir(folder);
    command
}

/// Runs `bridge` in `folder`; `RECIPE` among the arguments means the tiny recipe.
fn bridge(folder: &Path, arguments: &[&str]) -> Output {
    let recipe = recipe().display().to_string();
    let arguments: Vec<&str> = arguments.iter().map(|a| if *a == "RECIPE" { recipe.as_str() } else { *a }).collect();
    command(folder, &arguments).output().expect("bridge starts")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn is_empty(folder: &Path) -> bool {
    std::fs::read_dir(folder).unwrap().next().is_none()
}

/// Asserts that a command ends with code 2, names all of `names` and leaves no file behind.
fn assert_refused(arguments: &[&str], names: &[&str]) {
    let folder = tempfile::tempdir().unwrap();
    let output = bridge(folder.path(), arguments);
    let said = format!("{}{}", text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(2), "{arguments:?}: {said}");
    assert!(!said.contains("panicked"), "{arguments:?}: {said}");
    for name in names {
        assert!(said.contains(name), "{arguments:?}: no {name:?} in {said}");
    }
    assert!(is_empty(folder.path()), "{arguments:?} left files behind");
}

/// A checkpoint of the tiny recipe, made once.
fn checkpoint() -> String {
    static FOLDER: OnceLock<tempfile::TempDir> = OnceLock::new();
    let folder = FOLDER.get_or_init(|| {
        let folder = tempfile::tempdir().unwrap();
        let output = bridge(folder.path(), &["train", "RECIPE", "train.train_iters=2", "checkpoint.save=saved"]);
        assert!(output.status.success(), "{}", text(&output.stderr));
        folder
    });
    folder.path().join("saved").display().to_string()
}

#[test]
fn unknown_settings_come_with_the_nearest_name() {
    let misspelt = ["optimizer.wieght_decay=1", "modle.num_layers=2", "model.activation_func=sillu"];
    for command in [&["train", "RECIPE"][..], &["config", "check", "RECIPE"], &["plan", "RECIPE"]] {
        let names = ["optimizer.wieght_decay", "`weight_decay`", "modle", "`model`", "model.activation_func", "`silu`"];
        assert_refused(&[command, &misspelt].concat(), &names);
    }
    assert_refused(&["train", "nowhere.toml"], &["nowhere.toml"]);
    assert_refused(&["trian", "RECIPE"], &["trian", "'train'"]);
    assert_refused(&["train", "RECIPE", "--rank", "2"], &["--rank", "--ranks"]);
}

#[test]
fn settings_are_explained_and_the_command_line_documents_itself() {
    let folder = tempfile::tempdir().unwrap();
    let said = |arguments: &[&str]| {
        let output = bridge(folder.path(), arguments);
        assert!(output.status.success(), "{arguments:?}: {}", text(&output.stderr));
        text(&output.stdout).to_string()
    };
    let explained = said(&["config", "explain", "model.sequence_parallel"]);
    for name in ["default    false", "GPTModelProvider", "model.tensor_model_parallel_size", "use_sequence_parallel"] {
        assert!(explained.contains(name), "{name}: {explained}");
    }
    assert!(said(&["config", "explain", "train"]).contains("train.micro_batch_size"));
    let json: Value = serde_json::from_str(&said(&["config", "explain", "optimizer.lr", "--json"])).expect("JSON");
    assert_eq!((&json["key"], &json["status"]), (&Value::from("optimizer.lr"), &Value::from("accepted")));
    assert!(said(&["config", "explain", "learning_rate"]).contains("\noptimizer.lr\n"));
    assert!(said(&["config", "explain", "lora_r"]).contains("\npeft.dim\n"));
    for shell in ["bash", "zsh", "fish", "powershell"] {
        let script = said(&["completions", shell]);
        // The script for PowerShell has commands and options, but no values.
        let has_values = script.contains("nano-llama") || shell == "powershell";
        assert!(script.contains("generate") && has_values, "{shell}");
    }
    said(&["man", "pages"]);
    let page = std::fs::read_to_string(folder.path().join("pages/bridge-config-check.1")).unwrap();
    assert!(page.contains("config"), "{page}");
    assert_refused(&["train", "RECIPE", "--num-layers", "4"], &["`model.num_layers`"]);
}

#[test]
fn config_check_finds_what_train_finds() {
    for (overrides, names) in [
        (
            &[
                "tokenizer.tokenizer_type=HuggingFaceTokenizer",
                "tokenizer.vocab_size=null",
                "tokenizer.tokenizer_model=nowhere",
            ][..],
            &["tokenizer.tokenizer_model", "nowhere"][..],
        ),
        (&["checkpoint.pretrained_checkpoint=nowhere"], &["checkpoint.pretrained_checkpoint", "nowhere"]),
        (&["dataset.kind=gpt", "dataset.split=9,1", "dataset.data_path=nowhere"], &["dataset.data_path", "nowhere"]),
        (&["checkpoint.load=nowhere", "checkpoint.exit_on_missing_checkpoint=true"], &["checkpoint.load", "nowhere"]),
        (&["model.tensor_model_parallel_size=2"], &["--ranks"]),
    ] {
        for command in [&["config", "check", "RECIPE"][..], &["train", "RECIPE"]] {
            assert_refused(&[command, overrides].concat(), names);
        }
    }
}

#[test]
fn errors_are_json_where_json_is_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    for arguments in [
        &["train", "RECIPE", "optimizer.learning_rate=1", "--json"][..],
        &["plan", "RECIPE", "optimizer.learning_rate=1", "--json"],
        &["convert", "import", "nowhere", "out", "--json"],
        &["tokenizer", "train", "nowhere.txt", "--output", "t", "--json"],
        &["generate", "nowhere", "--prompt", "a", "--json"],
        &["train", "RECIPE", "--nonsense", "--json"],
    ] {
        let output = bridge(folder.path(), arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        let report: Value =
            serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{arguments:?}: {error}"));
        let error = report["errors"][0].as_object().expect("an object");
        for key in ["key", "found", "expected", "hint", "file", "line", "message"] {
            assert!(error.contains_key(key), "{key} in {report}");
        }
    }
    let settings = std::fs::read_to_string(format!("{}/config.json", golden("llama"))).unwrap();
    let mut settings: Value = serde_json::from_str(&settings).unwrap();
    settings["hidden_act"] = "gelu_10".into();
    std::fs::create_dir(folder.path().join("model")).unwrap();
    std::fs::write(folder.path().join("model/config.json"), settings.to_string()).unwrap();
    for command in
        [&["convert", "import", "model", "out", "--json"][..], &["generate", "model", "--prompt", "a", "--json"]]
    {
        let report: Value = serde_json::from_slice(&bridge(folder.path(), command).stdout).expect("JSON");
        let error = &report["errors"][0];
        assert_eq!(error["key"], "hidden_act", "{report}");
        assert!(error["file"].as_str().is_some_and(|file| file.ends_with("model/config.json")), "{report}");
    }
}

#[test]
fn config_check_knows_which_devices_this_build_has() {
    let check = ["config", "check", "RECIPE"];
    assert_refused(&[&check[..], &["device=gpu"]].concat(), &["device: ", "\"gpu\"", "flex", "cuda"]);
    assert_refused(&["train", "RECIPE", "--device", "nonesuch"], &["device", "nonesuch", "flex"]);
    if cfg!(feature = "cuda") {
        return;
    }
    let absent = [&check[..], &["device=cuda:1", "optimizer.lr=null"]].concat();
    // One report has the device and all other problems.
    assert_refused(
        &absent,
        &["device: needs the cargo feature `cuda`", "--device cuda", "optimizer.lr", "2 configuration"],
    );
    let folder = tempfile::tempdir().unwrap();
    let output = bridge(folder.path(), &[&check[..], &["device=cuda", "--json"]].concat());
    let report: Value = serde_json::from_slice(&output.stdout).expect("one JSON object");
    assert_eq!((output.status.code(), &report["ok"]), (Some(2), &Value::Bool(false)));
    assert_eq!((&report["errors"][0]["key"], &report["errors"][1]), (&Value::from("device"), &Value::Null));
    assert_refused(&["train", "RECIPE", "--device", "cuda"], &["cuda"]);
}

#[test]
fn a_seed_that_a_resumed_run_does_not_take_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let train = |iters: &str, more: &[&str]| {
        let save = ["checkpoint.save=saved", "validation.eval_iters=0", "scheduler.override_opt_param_scheduler=true"];
        let output = bridge(folder.path(), &[&["train", "RECIPE", iters], &save[..], more].concat());
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    train("train.train_iters=1", &[]);
    let told = "seed 1234, not from rng.seed = 77";
    assert!(train("train.train_iters=2", &["rng.seed=77"]).contains(told));
    assert!(!train("train.train_iters=3", &["rng.seed=1234"]).contains("not from rng.seed"));
    assert!(!train("train.train_iters=4", &["rng.seed=77", "checkpoint.load_rng=false"]).contains("not from rng.seed"));
}

#[test]
fn eval_checks_its_arguments() {
    let model = checkpoint();
    let refused = |arguments: &[&str], names: &[&str]| assert_refused(&[&["eval", &model], arguments].concat(), names);
    refused(&["--max-samples", "0"], &["--max-samples"]);
    refused(&["--micro-batch-size", "0"], &["--micro-batch-size"]);
    refused(&["--seq-length", "8"], &["--text"]);
    refused(&["--split", "training"], &["training", "train, valid, test"]);
    refused(&["--text", "a", "--recipe", "b"], &["--text", "--recipe"]);
    refused(&["--text", "nowhere/*.txt"], &["nowhere/*.txt"]);
    refused(&["--text", "notes.txt", "dataset.kind=mock"], &["dataset.kind=mock", "--text"]);
    refused(&["--device", "nonesuch"], &["nonesuch", "flex"]);
    refused(&["--recipe", "nowhere.toml"], &["nowhere.toml"]);
    refused(&["dataset.knd=mock"], &["dataset.knd", "`kind`"]);
    refused(&["model.seq_length=128"], &["model.seq_length", "128", "64"]);
    refused(&["tokenizer.vocab_size=600", "model.vocab_size=601"], &["outside the model's vocabulary", "512"]);
    assert_refused(&["eval", "nowhere"], &["nowhere"]);
    assert_refused(&["eval"], &["<MODEL>"]);
}

#[test]
fn eval_reads_text_in_one_pass() {
    let model = checkpoint();
    let folder = tempfile::tempdir().unwrap();
    let numbers: Vec<String> = (0..300).map(|i| (i * 37 % 511).to_string()).collect();
    std::fs::write(folder.path().join("a.txt"), numbers.join(" ")).unwrap();
    std::fs::write(folder.path().join("large.txt"), "1 2 9999").unwrap();
    std::fs::write(folder.path().join("single.txt"), "").unwrap();
    let eval = |arguments: &[&str]| bridge(folder.path(), &[&["eval", &model, "--json"], arguments].concat());
    let figures = |arguments: &[&str]| -> Value {
        let output = eval(arguments);
        assert!(output.status.success(), "{}", text(&output.stderr));
        serde_json::from_slice(&output.stdout).expect("one JSON object")
    };
    // The tokenizer ends the document: 300 of 301 tokens are predicted, in sequences of the model's
    // 64 positions.
    let whole = figures(&["--text", "a.txt"]);
    assert_eq!((&whole["tokens"], &whole["samples"]), (&Value::from(300), &Value::from(5)));
    assert_eq!((&whole["bits_per_byte"], &whole["bytes"]), (&Value::Null, &Value::Null));
    assert!((5.0..8.0).contains(&whole["loss"].as_f64().unwrap()), "{whole}");
    // How many sequences are read at a time makes no difference.
    let loss = |value: &Value| value["loss"].as_f64().unwrap();
    let one = figures(&["--text", "a.txt", "--micro-batch-size", "1"]);
    assert!((loss(&one) - loss(&whole)).abs() < 1e-5, "{one} {whole}");
    let short = figures(&["--text", "a.txt", "--seq-length", "7", "--max-samples", "3"]);
    assert_eq!((&short["tokens"], &short["samples"]), (&Value::from(21), &Value::from(3)));
    let split = figures(&["--split", "test", "--max-samples", "5", "--micro-batch-size", "2"]);
    assert_eq!((&split["tokens"], &split["samples"]), (&Value::from(5 * 64), &Value::from(5)));
    for (arguments, name) in [
        (&["--text", "single.txt"][..], "nothing to evaluate"),
        (&["--text", "large.txt"], "9999"),
        (&["--text", "a.txt", "--seq-length", "65"], "--seq-length"),
    ] {
        let output = eval(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        // The error is JSON on standard output, because JSON was requested.
        assert!(text(&output.stdout).contains(name), "{arguments:?}: {}", text(&output.stdout));
    }
}

#[test]
fn data_is_named_with_or_without_its_extension() {
    let folder = tempfile::tempdir().unwrap();
    let document = |d: u64| -> String {
        let numbers: Vec<String> = (0..100 + d).map(|i| (i * (i + d) % 509).to_string()).collect();
        format!("{{\"text\": \"{}\"}}\n", numbers.join(" "))
    };
    std::fs::write(folder.path().join("a.jsonl"), (0..40).map(document).collect::<String>()).unwrap();
    let build = ["data", "build", "a.jsonl", "--output", "tokens", "--null-vocab-size", "511"];
    let output = bridge(folder.path(), &build);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let losses = |name: &str| {
        let (path, log_dir) = (format!("dataset.data_path={name}"), format!("logger.log_dir={name}.log"));
        let data = ["dataset.kind=gpt", "dataset.split=80,20,0", "train.train_iters=2", &path, &log_dir];
        let output = bridge(folder.path(), &[&["train", "RECIPE"], &data[..]].concat());
        assert!(output.status.success(), "{name}: {}", text(&output.stderr));
        let metrics = std::fs::read_to_string(folder.path().join(format!("{name}.log/metrics.jsonl"))).unwrap();
        let loss = |line: &str| serde_json::from_str::<Value>(line).unwrap()["loss"].as_f64().unwrap();
        metrics.lines().map(loss).collect::<Vec<_>>()
    };
    let expected = losses("tokens");
    assert!(expected.len() >= 3, "{expected:?}");
    assert_eq!(losses("tokens.bin"), expected);
    assert_eq!(losses("tokens.idx"), expected);
    let data = ["dataset.kind=gpt", "dataset.split=80,20,0", "dataset.data_path=token"];
    let output = bridge(folder.path(), &[&["train", "RECIPE"], &data[..]].concat());
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("token.idx"), "{}", text(&output.stderr));
}

/// Starts a long run, waits for its first steps, sends a signal, and returns the exit code.
fn interrupted(folder: &Path, signal: &str) -> Option<i32> {
    let recipe = recipe().display().to_string();
    let long = ["train.train_iters=100000", "scheduler.lr_decay_iters=10", "checkpoint.save=saved"];
    let arguments = [&["train", recipe.as_str(), "validation.eval_interval=null"], &long[..]].concat();
    let mut child: Child =
        command(folder, &arguments).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("bridge starts");
    let metrics = folder.join("runs/tiny/metrics.jsonl");
    let started = std::time::Instant::now();
    while !std::fs::read_to_string(&metrics).is_ok_and(|text| text.lines().count() > 2) {
        assert!(started.elapsed() < Duration::from_secs(60), "no step in a minute");
        std::thread::sleep(Duration::from_millis(20));
    }
    let process = child.id().to_string();
    assert!(Command::new("kill").args([signal, &process]).status().unwrap().success());
    child.wait().unwrap().code()
}

#[test]
fn exit_codes_say_how_it_ended() {
    let folder = tempfile::tempdir().unwrap();
    let code = |arguments: &[&str]| bridge(folder.path(), arguments).status.code();
    assert_eq!(code(&["train", "RECIPE", "train.train_iters=1"]), Some(0));
    assert_eq!(code(&["train", "RECIPE", "train.exit_interval=1"]), Some(0));
    assert_eq!(code(&["--version"]), Some(0));
    assert_eq!(code(&["train", "RECIPE", "train.train_iters=0"]), Some(2));
    let overflow =
        ["mixed_precision=fp16_mixed", "ddp.check_for_nan_in_grad=true", "optimizer.initial_loss_scale=1e30"];
    assert_eq!(code(&[&["train", "RECIPE"], &overflow[..]].concat()), Some(1));
    let injected = [
        "rerun_state_machine.rerun_mode=validate_results",
        "rerun_state_machine.error_injection_rate=1",
        "rerun_state_machine.error_injection_type=persistent_error",
    ];
    assert_eq!(code(&[&["train", "RECIPE"], &injected[..]].concat()), Some(16));
    for (signal, number) in [("-INT", 2), ("-TERM", 15)] {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(interrupted(folder.path(), signal), Some(128 + number), "{signal}");
        let latest = std::fs::read_to_string(folder.path().join("saved/latest_checkpointed_iteration.txt")).unwrap();
        assert!(latest.trim().parse::<u64>().unwrap() > 2, "saved before it stopped");
    }
}

#[test]
fn odd_recipe_files_are_errors() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("recipe.toml");
    let tiny = std::fs::read_to_string(recipe()).unwrap();
    let refused = |bytes: &[u8], name: &str| {
        std::fs::write(&path, bytes).unwrap();
        assert_refused(&["train", path.to_str().unwrap()], &[name]);
    };
    refused(b"", "model.num_layers");
    refused(b"\xff\xfe\x00", "recipe.toml");
    refused(tiny.replace("seq_length", "\"seq_l\u{e4}nge\"").as_bytes(), "seq_l\u{e4}nge");
    refused(tiny.replace("lr = 1e-3", "lr = nan").as_bytes(), "optimizer.lr");
    refused(tiny.replace("num_layers = 2", "num_layers = 2\nnum_layers = 2").as_bytes(), "num_layers");
    refused(tiny.replace("num_layers = 2", "num_layers = 9223372036854775807").as_bytes(), "model.num_layers");
    refused(tiny.replace("[train]", "[train.deeper]").as_bytes(), "train.deeper");
    assert_refused(&["train", folder.path().to_str().unwrap()], &[folder.path().to_str().unwrap()]);
    // CRLF line ends and a byte order mark are accepted.
    let odd = format!("\u{feff}{}", tiny.replace('\n', "\r\n"));
    std::fs::write(&path, odd).unwrap();
    let output = bridge(folder.path(), &["config", "check", path.to_str().unwrap()]);
    assert!(output.status.success(), "{}", text(&output.stderr));
}

/// A golden folder of the repository.
fn golden(name: &str) -> String {
    bridge_tests::root().join("bridge-models/tests/fixtures/golden").join(name).display().to_string()
}

#[test]
fn the_map_of_an_import_is_shown_and_nothing_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let output = bridge(folder.path(), &["convert", "import", &golden("llama"), "--dry-run"]);
    let said = text(&output.stdout);
    assert!(output.status.success(), "{}", text(&output.stderr));
    for line in [
        "decoder.layers.1.self_attention.linear_qkv.weight [128, 64]",
        "    <- model.layers.1.self_attn.k_proj.weight [32, 64] F32",
    ] {
        assert!(said.lines().any(|said| said == line), "{said}");
    }
    // An expert is a part of the tensor that has all of its layer.
    let output = bridge(folder.path(), &["convert", "import", &golden("mixtral"), "--dry-run"]);
    let line = "    <- model.layers.1.mlp.experts.gate_up_proj[3] [224, 64] F32";
    assert!(text(&output.stdout).lines().any(|said| said == line), "{}", text(&output.stdout));
    let output = bridge(folder.path(), &["convert", "import", &golden("llama"), "--dry-run", "--json"]);
    let map: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(map["map"][0]["tensors"][0]["name"], "model.embed_tokens.weight");
    assert!(is_empty(folder.path()));
    assert_refused(&["convert", "import", &golden("llama")], &["OUTPUT"]);
}

#[test]
fn a_folder_goes_through_gguf_and_comes_back_in_shards() {
    let folder = tempfile::tempdir().unwrap();
    let run = |arguments: &[&str]| {
        let output = bridge(folder.path(), &[&["convert"], arguments].concat());
        assert!(output.status.success(), "{arguments:?}: {}", text(&output.stderr));
    };
    // The second export writes over the first.
    run(&["export", &golden("llama"), "model.gguf"]);
    run(&["export", &golden("llama"), "model.gguf"]);
    run(&["import", "model.gguf", "base"]);
    run(&["export", "base", "back", "--max-shard-size", "100KB"]);
    let index = std::fs::read_to_string(folder.path().join("back/model.safetensors.index.json")).unwrap();
    let index: Value = serde_json::from_str(&index).unwrap();
    assert!(index["weight_map"].as_object().unwrap().len() > 10);
    let golden_values = Path::new(&golden("llama")).join("golden.safetensors").display().to_string();
    let output = bridge(folder.path(), &["verify", "back", "--reference", &golden_values]);
    assert!(output.status.success(), "{}", text(&output.stdout));
    for (arguments, word) in [
        (["export", "base", "other.gguf", "--dtype", "f8"], "q8_0"),
        (["export", "base", "other", "--dtype", "q8_0"], "GGUF"),
        (["export", "base", "other", "--max-shard-size", "0"], "--max-shard-size"),
    ] {
        let output = bridge(folder.path(), &[&["convert"], &arguments[..]].concat());
        assert_eq!(output.status.code(), Some(2));
        assert!(text(&output.stderr).contains(word), "{}", text(&output.stderr));
    }
    assert!(!folder.path().join("other").exists() && !folder.path().join("other.gguf").exists());
}

/// Report of `bridge bench` on a short run of a small model.
fn measured(arguments: &[&str]) -> Value {
    let folder = tempfile::tempdir().unwrap();
    let small = ["bench", "--preset", "nano-gpt2", "--micro-batch", "1", "--seq", "8", "--json", "--threads", "1"];
    let output = bridge(folder.path(), &[&small[..], arguments].concat());
    assert!(output.status.success(), "{arguments:?}: {}", text(&output.stderr));
    assert!(is_empty(folder.path()), "a measurement leaves nothing behind");
    serde_json::from_slice(&output.stdout).expect("a line of JSON")
}

#[test]
fn a_measurement_says_what_ran() {
    let of = |dtype| measured(&["--steps", "2", "--warmup", "1", "--dtype", dtype]);
    let reports = ["float32", "bf16", "float16"].map(of);
    for (report, dtype) in reports.iter().zip(["fp32", "bf16", "fp16"]) {
        assert_eq!((&report["dtype"], &report["tokens_per_step"]), (&Value::from(dtype), &Value::from(8)), "{report}");
        // Parameters of the model, in any dtype, with as many positions as tokens.
        assert_eq!(report["params"], 17_037_312 - (256 - 8) * 384, "{report}");
        assert_eq!(report["losses"].as_array().expect("losses").len(), 3);
        assert!(report["first_step_seconds"].as_f64() >= report["setup_seconds"].as_f64(), "{report}");
        assert!(report["peak_mib"].as_f64() > Some(0.0) && report["device_reserved_mib"].is_null(), "{report}");
    }
    // The same model and data; how numbers are stored shows.
    let losses: Vec<f64> = reports.iter().map(|report| report["losses"][2].as_f64().expect("a loss")).collect();
    assert!(losses[1..].iter().all(|loss| *loss != losses[0] && (loss - losses[0]).abs() < 0.1), "{losses:?}");
    assert_refused(&["bench", "--dtype", "fp8"], &["--dtype", "bf16"]);
    assert_refused(&["bench", "--ops", "--preset", "moe-8x"], &["--ops", "moe-8x"]);
    assert_refused(&["bench", "--ops", "--seq", "1048576", "--micro-batch", "1048576"], &["--micro-batch"]);
}

#[test]
fn single_operations_are_measured_in_the_dtype_that_is_asked_for() {
    let report = measured(&["--ops", "--steps", "1", "--dtype", "bf16"]);
    assert_eq!((&report["dtype"], &report["preset"]), (&Value::from("bf16"), &Value::from("nano-gpt2")));
    for name in ["linear", "attention", "fc1", "adamw"] {
        assert!(report["milliseconds"][name].as_f64() > Some(0.0), "{name}: {report}");
    }
}

#[test]
fn settings_without_effect_are_told_and_refused_if_strict() {
    let folder = tempfile::tempdir().unwrap();
    let check = ["config", "check", "RECIPE", "scheduler.lr_decay_style=constant"];
    let output = bridge(folder.path(), &[&check[..], &["--json"]].concat());
    let said: Value = serde_json::from_slice(&output.stdout).unwrap();
    let warnings = said["warnings"].as_array().unwrap();
    let of_setting = |warning: &&Value| warning.as_str().is_some_and(|text| text.starts_with("optimizer.min_lr"));
    assert_eq!((output.status.code(), warnings.iter().filter(of_setting).count()), (Some(0), 1), "{said}");
    for command in [&["config", "check"][..], &["train"]] {
        let arguments = [command, &["RECIPE", "scheduler.lr_decay_style=constant", "--strict"]].concat();
        assert_refused(&arguments, &["optimizer.min_lr", "has no effect with scheduler.lr_decay_style"]);
    }
}

#[test]
fn a_metric_that_no_evaluation_has_is_refused_before_training() {
    let settings = ["validation.metric=val_loss", "checkpoint.keep_best=true", "validation.eval_interval=5"];
    for command in [&["config", "check"][..], &["train"]] {
        let arguments = [command, &["RECIPE", "checkpoint.save=ck"], &settings].concat();
        assert_refused(&arguments, &["validation.metric", "lm loss"]);
    }
}

/// Every setting of the recipes in the repository has an effect.
#[test]
fn recipes_are_strict() {
    let kinds = bridge_models::registry().kinds();
    for entry in std::fs::read_dir(bridge_tests::root().join("recipes")).unwrap() {
        let path = entry.unwrap().path();
        // Recipes of large models are for plans: they name no data.
        let on = |size: usize| {
            let raw = bridge_core::config::RawConfig::from_file(&path, &[], &kinds)?;
            raw.finalize_for_plan(&bridge_core::config::World { size })
        };
        let config = (0..=14).find_map(|power| on(1 << power).ok());
        let config = config.unwrap_or_else(|| panic!("{}: {}", path.display(), on(1).unwrap_err()));
        if let Err(errors) = config.strict() {
            panic!("{}: {errors}", path.display());
        }
    }
}

/// A folder with the exported model of the tiny recipe and a tokenizer whose vocabulary has an
/// unused id.
fn model_with_a_hole(folder: &Path) -> String {
    let export = bridge(folder, &["convert", "export", &checkpoint(), "model"]);
    assert!(export.status.success(), "{}", text(&export.stderr));
    std::fs::write(folder.join("text.txt"), "one two three four five six seven eight\n".repeat(50)).unwrap();
    let trained = bridge(folder, &["tokenizer", "train", "text.txt", "--output", "tokenizer", "--vocab-size", "260"]);
    assert!(trained.status.success(), "{}", text(&trained.stderr));
    let tokenizer = std::fs::read_to_string(folder.join("tokenizer/tokenizer.json")).unwrap();
    let mut tokenizer: Value = serde_json::from_str(&tokenizer).unwrap();
    tokenizer["model"]["vocab"]["holed"] = 300.into();
    std::fs::write(folder.join("model/tokenizer.json"), tokenizer.to_string()).unwrap();
    folder.join("model").display().to_string()
}

/// The library of tokenizers prints a line about unused ids to standard output.
#[test]
fn standard_output_with_json_is_json_whatever_libraries_print() {
    let folder = tempfile::tempdir().unwrap();
    let model = model_with_a_hole(folder.path());
    for arguments in [
        &["generate", &model, "--prompt", "one", "--max-tokens", "2", "--json"][..],
        &["convert", "import", &model, "imported", "--json"],
        &["eval", &model, "--text", "text.txt", "--max-samples", "1", "--seq-length", "8", "--json"],
    ] {
        let output = bridge(folder.path(), arguments);
        let stdout = text(&output.stdout);
        assert!(!stdout.is_empty(), "{arguments:?}: {}", text(&output.stderr));
        for line in stdout.lines() {
            assert!(serde_json::from_str::<Value>(line).is_ok(), "{arguments:?}: {line}");
        }
    }
}

#[test]
fn a_killed_export_can_be_made_again() {
    let folder = tempfile::tempdir().unwrap();
    let export = || bridge(folder.path(), &["convert", "export", &checkpoint(), "model"]);
    assert!(export().status.success());
    let model = folder.path().join("model");
    let remove_but = |kept: &str| {
        let entries = std::fs::read_dir(&model).unwrap().map(|entry| entry.unwrap().path());
        entries.filter(|path| !path.ends_with(kept)).for_each(|path| std::fs::remove_file(path).unwrap());
    };
    remove_but("README.md");
    let again = export();
    assert!(again.status.success(), "{}", text(&again.stderr));
    // A card that Bridge did not write is not overwritten.
    remove_but("README.md");
    std::fs::write(model.join("README.md"), "# Mine\n").unwrap();
    let refused = export();
    assert_eq!(refused.status.code(), Some(2));
    assert!(text(&refused.stderr).contains("README.md was not made by this command"), "{}", text(&refused.stderr));
}

#[test]
fn a_run_before_its_first_checkpoint_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let saved = folder.path().join("runs/dates/checkpoints");
    std::fs::create_dir_all(&saved).unwrap();
    std::fs::write(folder.path().join("runs/dates/run.json"), "{}").unwrap();
    let said = |arguments: &[&str]| {
        let output = bridge(folder.path(), arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        text(&output.stderr)
    };
    for arguments in [&["generate", "dates", "--prompt", "a"][..], &["eval", "runs/dates"]] {
        let said = said(arguments);
        assert!(said.contains("runs/dates/checkpoints: the run has saved no checkpoint yet"), "{said}");
    }
    std::fs::remove_dir(&saved).unwrap();
    let said_without = said(&["generate", "dates", "--prompt", "a"]);
    assert!(said_without.contains("runs/dates: the run has saved no checkpoint here"), "{said_without}");
    std::fs::create_dir(folder.path().join("empty")).unwrap();
    let said_of_none = said(&["generate", "empty", "--prompt", "a"]);
    assert!(said_of_none.contains("empty: expected a checkpoint or a Hugging Face folder"), "{said_of_none}");
}

#[test]
fn names_from_files_do_not_reach_the_terminal_as_they_are() {
    let folder = tempfile::tempdir().unwrap();
    let name = "evil\u{1b}]0;title\u{7}\u{202e}.toml";
    let missing = bridge(folder.path(), &["config", "check", name]);
    assert_eq!(missing.status.code(), Some(2));
    std::fs::write(folder.path().join(name), "[model]\n\"a\u{9b}2J\" = 1\n").unwrap();
    let unknown = bridge(folder.path(), &["config", "check", name]);
    let json = bridge(folder.path(), &["config", "check", name, "--json"]);
    for output in [&missing, &unknown, &json] {
        let said = text(&output.stdout) + &text(&output.stderr);
        assert!(said.contains("u001b") && !said.contains(['\u{1b}', '\u{7}', '\u{9b}', '\u{202e}']), "{said:?}");
    }
    let errors: Value = serde_json::from_str(&text(&json.stdout)).unwrap();
    assert_eq!(errors["errors"][0]["key"], "model.a\u{9b}2J");
}

#[test]
fn many_unknown_settings_take_seconds() {
    let folder = tempfile::tempdir().unwrap();
    for (name, line) in [("flat.toml", "k"), ("dotted.toml", "[model]\na")] {
        let (head, key) = line.rsplit_once('\n').map_or(("", line), |(head, key)| (head, key));
        let behind = if head.is_empty() { "" } else { ".b" };
        let lines: String = (0..30_000).map(|number| format!("{key}{number}{behind} = 1\n")).collect();
        std::fs::write(folder.path().join(name), format!("{head}\n{lines}")).unwrap();
        let begun = std::time::Instant::now();
        let output = bridge(folder.path(), &["config", "check", name]);
        assert_eq!(output.status.code(), Some(2));
        assert!(text(&output.stderr).contains(" configuration errors"));
        assert!(begun.elapsed() < Duration::from_secs(60), "{name}: {:?}", begun.elapsed());
    }
}

#[test]
fn more_ranks_than_a_process_has_room_for_are_refused() {
    let arguments = ["train", "RECIPE", "--ranks=65536", "train.global_batch_size=65536", "train.micro_batch_size=1"];
    assert_refused(&arguments, &["--ranks", "at most 2048", "found 65536", "--launcher mpi"]);
}
