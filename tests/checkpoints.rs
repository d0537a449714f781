//! `bridge checkpoint`: `list`, `show`, `verify`, `compare` and `prune`.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use bridge_tests::{copy, program, run_in};
use serde_json::Value;

/// Exit code, and the lines of standard output.
fn checkpoint(folder: &Path, arguments: &[&str]) -> (Option<i32>, Vec<String>) {
    let output = Command::new(program()).arg("checkpoint").args(arguments).current_dir(folder).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    (output.status.code(), text.lines().map(str::to_owned).collect())
}

fn objects(lines: &[String]) -> Vec<Value> {
    lines.iter().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// A run of six steps that saved each second one.
fn saved() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    run_in(
        folder.path(),
        &[
            "train.train_iters=6",
            "checkpoint.save=saved",
            "checkpoint.save_interval=2",
            "validation.eval_iters=0",
            "model.num_layers=1",
        ],
    );
    folder
}

#[test]
fn checkpoints_are_listed_shown_and_verified() {
    let folder = saved();
    let (code, lines) = checkpoint(folder.path(), &["list", "saved", "--json"]);
    let listed = objects(&lines);
    assert_eq!((code, listed.len()), (Some(0), 3));
    let iterations: Vec<_> = listed.iter().map(|of| of["iteration"].as_u64().unwrap()).collect();
    assert_eq!(iterations, [2, 4, 6]);
    assert!(listed[2]["latest"] == true && listed[0]["latest"] == false && listed[0]["bytes"].as_u64() > Some(0));

    let (code, lines) = checkpoint(folder.path(), &["inspect", "saved/iter_0000004", "--json"]);
    let shown = &objects(&lines)[0];
    assert_eq!((code, shown["iteration"].as_u64()), (Some(0), Some(4)));
    assert_eq!(shown["train_state"]["consumed_train_samples"], 32);
    assert_eq!(shown["tensors"]["embedding.word_embeddings.weight"]["shape"], serde_json::json!([512, 64]));
    assert!(shown["files"]["model-rank00000.safetensors"]["checksum"].is_string());
    let (_, text) = checkpoint(folder.path(), &["inspect", "saved"]);
    assert!(text[0].contains("iteration 6") && text.iter().any(|line| line.starts_with("optimizer ")), "{text:?}");

    assert_eq!(checkpoint(folder.path(), &["verify", "saved"]).0, Some(0));
    let file = folder.path().join("saved/iter_0000006/optimizer-rank00000.safetensors");
    let mut bytes = std::fs::read(&file).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 4;
    std::fs::write(&file, bytes).unwrap();
    let (code, lines) = checkpoint(folder.path(), &["verify", "saved", "--json"]);
    let found: Vec<_> = objects(&lines).iter().map(|of| of["intact"].as_bool().unwrap()).collect();
    assert_eq!((code, found), (Some(1), vec![true, true, false]));
    let (_, text) = checkpoint(folder.path(), &["verify", "saved"]);
    assert!(text.iter().any(|line| line.contains("optimizer-rank00000.safetensors: expected checksum")), "{text:?}");
    assert!(text.iter().any(|line| line == "a run would go on from iteration 4"), "{text:?}");
}

#[test]
fn differences_are_named_and_equal_ones_have_none() {
    let folder = saved();
    let (code, lines) = checkpoint(folder.path(), &["diff", "saved/iter_0000002", "saved/iter_0000006", "--json"]);
    let found = &objects(&lines)[0];
    assert_eq!((code, &found["equal"]), (Some(1), &Value::Bool(false)));
    assert_eq!(found["settings"], serde_json::json!([]));
    let step = found["state"].as_array().unwrap().iter().find(|of| of["key"] == "step").unwrap();
    assert_eq!(step["values"], serde_json::json!([2, 6]));
    let tensors = found["tensors"].as_array().unwrap();
    let embedding = tensors.iter().find(|of| of["name"] == "embedding.word_embeddings.weight").unwrap();
    assert!(embedding["different"].as_u64() > Some(0) && embedding["largest_difference"].as_f64() > Some(0.0));

    copy(&folder.path().join("saved/iter_0000006"), &folder.path().join("copy/iter_0000006"));
    let (code, text) = checkpoint(folder.path(), &["diff", "saved", "copy/iter_0000006"]);
    assert!(code == Some(0) && text[0].starts_with("equal: "), "{text:?}");
}

#[test]
fn pruning_keeps_what_a_run_needs() {
    let folder = saved();
    let left = || {
        let (_, lines) = checkpoint(folder.path(), &["list", "saved", "--json"]);
        objects(&lines).iter().map(|of| of["iteration"].as_u64().unwrap()).collect::<Vec<_>>()
    };
    let (code, lines) = checkpoint(folder.path(), &["prune", "saved", "--keep", "1", "--dry-run", "--json"]);
    assert_eq!((code, &objects(&lines)[0]["deleted"]), (Some(0), &serde_json::json!([2, 4])));
    assert_eq!(left(), [2, 4, 6]);
    let (_, text) = checkpoint(folder.path(), &["prune", "saved", "--keep", "1", "--retain-interval", "4"]);
    assert_eq!(text, ["deleted iterations 2"]);
    assert_eq!(left(), [4, 6]);
    // The only intact checkpoint is never deleted.
    std::fs::remove_file(folder.path().join("saved/iter_0000006/train_state.json")).unwrap();
    let (_, text) = checkpoint(folder.path(), &["prune", "saved", "--keep", "1"]);
    assert_eq!(text, ["nothing to delete"]);
    assert_eq!(checkpoint(folder.path(), &["list", "nowhere"]).0, Some(2));
    assert_eq!(checkpoint(folder.path(), &["prune", "saved"]).0, Some(2), "how many to keep must be said");
}

/// Bytes of the tensors of a safetensors file whose names begin with `prefix`, by the rest of the
/// name.
fn tensors(file: &Path, prefix: &str) -> BTreeMap<String, Vec<u8>> {
    let bytes = std::fs::read(file).unwrap();
    let (length, rest) = bytes.split_first_chunk().unwrap();
    let (header, data) = rest.split_at(u64::from_le_bytes(*length) as usize);
    let header: BTreeMap<String, Value> = serde_json::from_slice(header).unwrap();
    let of = |(name, entry): (&String, &Value)| {
        let place = |index: usize| entry["data_offsets"][index].as_u64().map(|place| place as usize);
        Some((name.strip_prefix(prefix)?.to_owned(), data[place(0)?..place(1)?].to_vec()))
    };
    header.iter().filter_map(of).collect()
}

#[test]
fn masters_begin_with_the_exact_values_of_a_checkpoint_without_the_rest_of_the_optimizer() {
    let folder = tempfile::tempdir().unwrap();
    let run = |settings: &[&str]| {
        let common = ["validation.eval_iters=0", "model.num_layers=1", "train.train_iters=3"];
        run_in(folder.path(), &[&common[..], settings].concat());
    };
    let file = |name: &str| folder.path().join(name);
    let masters = |name: &str| tensors(&file(name).join("optimizer-rank00000.safetensors"), "optimizer.master.");
    // Steps that change no parameter, so that the saved values are the loaded ones.
    let still = ["checkpoint.load_optim=false", "optimizer.lr=0.0", "optimizer.min_lr=0.0"];
    let exact = "checkpoint.load_main_params_from_ckpt=true";
    let bf16 = "mixed_precision=bf16_mixed";

    run(&[bf16, "checkpoint.save=saved", "train.exit_interval=2"]);
    for (save, setting) in [("rounded", None), ("exact", Some(exact))] {
        let save = format!("checkpoint.save={save}");
        run(&[&still[..], &[bf16, "checkpoint.load=saved", &save], setting.as_slice()].concat());
    }
    let saved = masters("saved/iter_0000002");
    assert!(saved.len() > 5);
    assert!(masters("exact/iter_0000003") == saved && masters("rounded/iter_0000003") != saved);

    // A checkpoint of float32 parameters, which have no masters.
    run(&["checkpoint.save=float32", "train.exit_interval=2"]);
    let settings = ["checkpoint.pretrained_checkpoint=float32", "checkpoint.save=tuned", bf16, exact];
    run(&[&still[..], &settings].concat());
    let parameters = tensors(&file("float32/iter_0000002/model-rank00000.safetensors"), "");
    let tuned = masters("tuned/iter_0000003");
    assert_eq!(tuned.keys().collect::<Vec<_>>(), saved.keys().collect::<Vec<_>>());
    assert!(tuned.iter().all(|(name, values)| &parameters[name] == values));
}

#[test]
fn a_rank_writes_several_files_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let common = ["validation.eval_iters=0", "train.train_iters=4", "checkpoint.save_interval=2"];
    for (save, writers) in [("one", "1"), ("three", "3")] {
        let settings = [format!("checkpoint.save={save}"), format!("checkpoint.storage_writers_per_rank={writers}")];
        run_in(folder.path(), &[&common[..], &settings.each_ref().map(String::as_str)].concat());
    }
    for group in ["model", "optimizer"] {
        for part in ["", "-part00001", "-part00002"] {
            assert!(folder.path().join(format!("three/iter_0000004/{group}-rank00000{part}.safetensors")).is_file());
        }
    }
    assert_eq!(checkpoint(folder.path(), &["verify", "three"]).0, Some(0));
    let (_, lines) = checkpoint(folder.path(), &["diff", "one", "three", "--json"]);
    assert_eq!(objects(&lines)[0]["tensors"], serde_json::json!([]), "the values are the same");
}
