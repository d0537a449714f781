//! A case of each class of hostile input, by hand.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use bridge_tests::{copy, program, recipe};
use serde_json::Value;

use crate::fixture::{Fixture, newest, seal_again, write_sealed};
use crate::judge::limited;
use crate::tensors::Tensors;

/// A copy of the fixture.
fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    copy(Fixture::shared().path(), folder.path());
    folder
}

/// Asserts that a command ends with code 2 and says all of `words`.
fn refused(folder: &Path, arguments: &[&str], words: &[&str]) {
    let arguments: Vec<String> = arguments.iter().map(|word| (*word).to_owned()).collect();
    let output = limited(folder, &arguments).unwrap_or_else(|| panic!("{arguments:?} did not end"));
    let said = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.status.code(), Some(2), "{arguments:?}: {said}");
    assert!(!said.contains("panicked"), "{arguments:?}: {said}");
    for word in words {
        assert!(said.contains(word), "{arguments:?}: no {word:?} in {said}");
    }
}

fn pipe(path: &Path) {
    let _ = fs::remove_file(path);
    assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
}

fn edit(path: &Path, change: impl FnOnce(&mut Value)) {
    let mut value: Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
    change(&mut value);
    fs::write(path, value.to_string()).unwrap();
}

const VERIFY: [&str; 4] = ["verify", "hf", "--reference", "golden.safetensors"];
const GENERATE: [&str; 6] = ["generate", "run/checkpoints", "--prompt", "one", "--max-tokens", "1"];

#[test]
fn what_is_no_regular_file_is_named() {
    let folder = folder();
    let at = |name: &str| folder.path().join(name);
    pipe(&at("pipe.toml"));
    refused(folder.path(), &["config", "check", "pipe.toml"], &["pipe.toml", "a named pipe"]);
    pipe(&at("run/checkpoints/checkpoint_journal.json"));
    refused(folder.path(), &GENERATE, &["checkpoint_journal.json", "a named pipe"]);
    pipe(&at("text/pipe.txt"));
    refused(folder.path(), &["tokenizer", "train", "text/pipe.txt", "-o", "out"], &["pipe.txt", "a named pipe"]);
    for name in ["hf/config.json", "hf/model.safetensors.index.json"] {
        let whole = fs::read(at(name)).ok();
        let _ = fs::remove_file(at(name));
        symlink("/dev/zero", at(name)).unwrap();
        // A single file of weights would count before an index.
        let (weights, elsewhere) = (at("hf/model.safetensors"), at("weights"));
        if name.ends_with("index.json") {
            fs::rename(&weights, &elsewhere).unwrap();
        }
        refused(folder.path(), &VERIFY, &[name, "a device"]);
        if elsewhere.exists() {
            fs::rename(&elsewhere, &weights).unwrap();
        }
        fs::remove_file(at(name)).unwrap();
        whole.iter().for_each(|whole| fs::write(at(name), whole).unwrap());
    }
    fs::create_dir(at("folder.toml")).unwrap();
    refused(folder.path(), &["plan", "folder.toml"], &["folder.toml", "a folder"]);
}

#[test]
fn pointers_and_names_without_end_are_named() {
    let folder = folder();
    let at = |name: &str| folder.path().join(name);
    for name in ["hf/config.json", "hf/model.safetensors", "model.gguf"] {
        let whole = fs::read(at(name)).unwrap();
        let pointer = format!("version https://git-lfs.github.com/spec/v1\noid sha256:{:064x}\nsize 269060552\n", 7);
        fs::write(at(name), pointer).unwrap();
        let model = if name.starts_with("hf") { "hf" } else { name };
        refused(folder.path(), &["convert", "import", model, "out"], &[name, "Git LFS pointer"]);
        fs::write(at(name), &whole).unwrap();
    }
    let weights = at("hf/model.safetensors");
    let mut tensors = Tensors::read(&weights);
    let norm = tensors.0.remove("model.norm.weight").unwrap();
    tensors.0.insert("x".repeat(100_000), norm);
    tensors.write(&weights);
    let import = ["convert", "import", "hf", "out"].map(str::to_owned);
    let said = limited(folder.path(), &import).expect("it ends").stderr;
    assert!(said.len() < 1000 && String::from_utf8_lossy(&said).contains("a name of at most"), "{} bytes", said.len());
    pipe(&at("pipe.gguf"));
    refused(folder.path(), &["convert", "import", "pipe.gguf", "out"], &["pipe.gguf", "a named pipe"]);
    refused(folder.path(), &["generate", "model.gguf", "--prompt", "1"], &["model.gguf", "no tokenizer"]);
    assert!(!at("out").exists());
}

#[test]
fn sizes_are_compared_with_what_the_files_hold() {
    let keys =
        ["num_hidden_layers", "hidden_size", "vocab_size", "num_attention_heads", "intermediate_size", "head_dim"];
    let sizes = [u64::from(u32::MAX), 1 << 31, 1 << 40, 1 << 62, 1 << 63, u64::MAX];
    let folder = folder();
    let config = folder.path().join("hf/config.json");
    let whole = fs::read(&config).unwrap();
    for (key, size) in keys.iter().zip(sizes).chain(keys.iter().rev().zip(sizes)) {
        edit(&config, |value| value[key] = size.into());
        refused(folder.path(), &VERIFY, &[]);
        fs::write(&config, &whole).unwrap();
    }
    edit(&config, |value| value["max_position_embeddings"] = (1_u64 << 31).into());
    refused(folder.path(), &VERIFY, &["hf/config.json: max_position_embeddings"]);
    fs::write(&config, &whole).unwrap();
    edit(&config, |value| value["eos_token_id"] = (1_u64 << 63).into());
    refused(folder.path(), &VERIFY, &["eos_token_id"]);
}

#[test]
fn files_name_no_path_outside_their_folder() {
    let folder = folder();
    fs::create_dir(folder.path().join("victim")).unwrap();
    fs::rename(folder.path().join("hf/model.safetensors"), folder.path().join("victim/model.safetensors")).unwrap();
    let index = folder.path().join("hf/model.safetensors.index.json");
    let absolute = folder.path().join("victim/model.safetensors").display().to_string();
    for path in ["../victim/model.safetensors", &absolute, "..", ""] {
        fs::write(&index, serde_json::json!({ "weight_map": { "model.norm.weight": path } }).to_string()).unwrap();
        refused(folder.path(), &VERIFY, &["model.safetensors.index.json", "same folder"]);
    }
}

#[test]
fn a_tensor_is_in_one_shard() {
    let folder = folder();
    let hf = folder.path().join("hf");
    for name in ["a.safetensors", "b.safetensors"] {
        fs::copy(hf.join("model.safetensors"), hf.join(name)).unwrap();
    }
    let map = serde_json::json!({ "weight_map": { "model.norm.weight": "a.safetensors", "lm_head.weight": "b.safetensors" } });
    fs::write(hf.join("model.safetensors.index.json"), map.to_string()).unwrap();
    // A single file would count before the index.
    fs::remove_file(hf.join("model.safetensors")).unwrap();
    // The last byte is a part of the last tensor's value.
    let mut other = fs::read(hf.join("b.safetensors")).unwrap();
    *other.last_mut().unwrap() ^= 1;
    fs::write(hf.join("b.safetensors"), other).unwrap();
    refused(folder.path(), &VERIFY, &["b.safetensors", "a.safetensors", "expected it once"]);
}

#[test]
fn nothing_is_written_through_links_of_a_run() {
    for (link, code) in [(".lock", 2), ("metrics.jsonl", 2)] {
        let folder = tempfile::tempdir().unwrap();
        let logs = folder.path().join("runs/tiny");
        fs::create_dir_all(&logs).unwrap();
        fs::write(folder.path().join("victim"), "kept").unwrap();
        symlink(folder.path().join("victim"), logs.join(link)).unwrap();
        let output = bridge_tests::bridge(folder.path(), &["train.train_iters=1"]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(fs::read_to_string(folder.path().join("victim")).unwrap(), "kept", "{link}: {said}");
        assert!(output.status.code() == Some(code) || !logs.join(link).is_symlink(), "{link}: {said}");
    }
}

#[test]
fn values_that_are_no_numbers_are_refused() {
    let folder = folder();
    let (weights, golden) = (folder.path().join("hf/model.safetensors"), folder.path().join("golden.safetensors"));
    let [whole, values] = [&weights, &golden].map(|path| fs::read(path).unwrap());
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let spoil = |tensor: &mut (String, Vec<u64>, Vec<u8>)| match tensor.0.as_str() {
            "F64" => tensor.2[..8].copy_from_slice(&f64::from(bad).to_le_bytes()),
            _ => tensor.2[..4].copy_from_slice(&bad.to_le_bytes()),
        };
        Tensors::read(&weights).with("model.norm.weight", spoil).write(&weights);
        refused(folder.path(), &VERIFY, &["model.safetensors", "model.norm.weight"]);
        refused(folder.path(), &["convert", "import", "hf", "out"], &["model.norm.weight"]);
        fs::write(&weights, &whole).unwrap();
        for name in ["loss", "ce_loss", "logits", "train_losses", "train_grad_norms", "grad.model.norm.weight"] {
            Tensors::read(&golden).with(name, spoil).write(&golden);
            refused(folder.path(), &VERIFY, &["golden.safetensors", name]);
            fs::write(&golden, &values).unwrap();
        }
    }
    for name in ["loss", "ce_loss"] {
        let empty = |tensor: &mut (String, Vec<u64>, Vec<u8>)| (tensor.1, tensor.2) = (vec![0], Vec::new());
        Tensors::read(&golden).with(name, empty).write(&golden);
        refused(folder.path(), &VERIFY, &["golden.safetensors", name, "1 values"]);
        fs::write(&golden, &values).unwrap();
    }
}

#[test]
fn checkpoints_with_right_checksums_are_not_trusted_for_that() {
    let folder = folder();
    let newest = newest(folder.path());
    let whole = |name: &str| fs::read(newest.join(name)).unwrap();
    let (config, metadata) = (whole("run_config.toml"), whole("metadata.json"));
    let text = String::from_utf8(config.clone()).unwrap();
    for (line, key) in [("num_layers = 2\n", "num_layers"), ("hidden_size = 64\n", "hidden_size")] {
        assert!(text.contains(line), "{text}");
        for size in ["2147483647", "65536", "9223372036854775807", "0"] {
            fs::write(newest.join("run_config.toml"), text.replace(line, &format!("{key} = {size}\n"))).unwrap();
            seal_again(&newest, "run_config.toml");
            refused(folder.path(), &GENERATE, &[]);
        }
    }
    fs::write(newest.join("run_config.toml"), &config).unwrap();
    fs::write(newest.join("metadata.json"), &metadata).unwrap();
    let weights = "model-rank00000.safetensors";
    let nan = |tensor: &mut (String, Vec<u64>, Vec<u8>)| tensor.2[..4].copy_from_slice(&f32::NAN.to_le_bytes());
    Tensors::read(&newest.join(weights)).with("decoder.final_layernorm.weight", nan).write(&newest.join(weights));
    seal_again(&newest, weights);
    refused(folder.path(), &GENERATE, &["decoder.final_layernorm.weight", "NaN"]);
}

#[test]
fn optimizer_states_that_are_no_floats_are_refused() {
    let folder = folder();
    let newest = newest(folder.path());
    let file = "optimizer-rank00000.safetensors";
    let mut tensors = Tensors::read(&newest.join(file));
    let name = tensors.0.keys().find(|name| name.contains("exp_avg.")).unwrap().clone();
    tensors = tensors.with(&name, |tensor: &mut (String, Vec<u64>, Vec<u8>)| tensor.0 = "I32".to_owned());
    tensors.write(&newest.join(file));
    let path = newest.join("metadata.json");
    let mut metadata: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    metadata["content"]["tensors"][&name]["dtype"] = "I32".into();
    write_sealed(&path, &metadata["content"]);
    seal_again(&newest, file);
    let longer = ["train.train_iters=3", "scheduler.override_opt_param_scheduler=true"];
    let train = [&["train", "recipe.toml"], &Fixture::run_overrides()[..], &longer].concat();
    refused(folder.path(), &train, &[&name, "F32", "I32"]);
}

#[test]
fn what_bridge_packed_is_what_it_reads() {
    let folder = folder();
    for (file, command) in [
        ("text.bin", &["data", "inspect", "run/cache/text"][..]),
        ("text.idx", &["data", "verify", "run/cache/text"]),
        ("tokenizer.json", &["data", "verify", "run/cache"]),
        ("tokenizer.json", &["data", "build", "text/a.txt", "--tokenizer", "run/cache", "-o", "out"]),
    ] {
        let path = folder.path().join("run/cache").join(file);
        let whole = fs::read(&path).unwrap();
        let mut changed = whole.clone();
        changed[whole.len() / 2] ^= 1;
        fs::write(&path, &changed).unwrap();
        refused(folder.path(), command, &[file, "checksum"]);
        fs::write(&path, &whole).unwrap();
    }
    let verify = ["data", "verify", "run/cache/text"].map(str::to_owned);
    let output = limited(folder.path(), &verify).unwrap();
    assert!(output.status.success() && String::from_utf8_lossy(&output.stdout).contains("every byte of 2 files"));
}

#[test]
fn texts_without_words_and_words_without_end() {
    let folder = folder();
    let at = |name: &str| folder.path().join(name);
    fs::write(at("empty.txt"), "").unwrap();
    fs::write(at("binary.txt"), [b"text".as_slice(), &[0; 100]].concat()).unwrap();
    fs::write(at("latin.txt"), b"caf\xe9").unwrap();
    for name in ["empty.txt", "binary.txt", "latin.txt"] {
        refused(folder.path(), &["tokenizer", "train", name, "-o", "out"], &[name]);
        refused(folder.path(), &["data", "build", name, "--tokenizer", "run/cache", "-o", "out"], &[name]);
    }
    fs::write(at("word.txt"), "ab".repeat(2 << 20)).unwrap();
    let build = ["data", "build", "word.txt", "--tokenizer", "run/cache", "-o", "word"].map(str::to_owned);
    assert!(limited(folder.path(), &build).expect("it ends").status.success());
}

#[test]
fn options_at_their_ends_are_errors() {
    let folder = folder();
    for size in ["0", "4611686018427387904", "18446744073709551615"] {
        for option in ["--micro-batch", "--seq", "--threads"] {
            refused(folder.path(), &["bench", option, size], &[option]);
        }
        refused(folder.path(), &["train", "recipe.toml", "--ranks", size], &["--ranks"]);
        refused(
            folder.path(),
            &["data", "build", "text/a.txt", "--null-vocab-size", size, "-o", "x"],
            &["--null-vocab-size"],
        );
    }
    for size in ["4611686018427387904", "18446744073709551615"] {
        refused(folder.path(), &["generate", "run/checkpoints", "--max-tokens", size], &["positions"]);
        for key in ["train.num_threads", "dataset.num_workers"] {
            refused(folder.path(), &["config", "check", "recipe.toml", &format!("{key}={size}")], &[key]);
        }
    }
    let key = format!("{}x=1", "a.".repeat(30_000));
    refused(folder.path(), &["config", "check", "recipe.toml", &key], &["parts"]);
    fs::write(folder.path().join("deep.toml"), format!("{}x = 1\n", "a.".repeat(60_000))).unwrap();
    refused(folder.path(), &["config", "check", "deep.toml"], &["deep.toml", "nested"]);
}

#[test]
fn results_that_cannot_be_printed_are_an_error() {
    let run = |redirect: &str, environment: &str| {
        let script = format!("{environment} exec \"$0\" config show \"$1\" {redirect}");
        let output = Command::new("bash").args(["-c", &script]).arg(program()).arg(recipe()).output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    for redirect in [">&-", ">/dev/full", "1</dev/null"] {
        let (code, said) = run(redirect, "");
        assert_eq!(code, Some(1), "{redirect}: {said}");
        assert!(said.contains("standard output"), "{redirect}: {said}");
    }
    assert_eq!(run(">/dev/null", "").0, Some(0));
    for threads in ["18446744073709551615", "4611686018427387904", "-1", "many"] {
        let (code, said) = run("", &format!("RAYON_NUM_THREADS={threads}"));
        assert_eq!(code, Some(2), "{threads}: {said}");
        assert!(said.contains("RAYON_NUM_THREADS"), "{said}");
    }
}
