//! Exports that are killed, fail, or are written over others: a folder has a whole model or none.

use super::files::export_to_temporary;
use super::*;

/// Hands parameters of a model to an exporter, the first `count` of them, some rows at a time.
fn fill(exporter: &mut Exporter, model: &HfModel, count: usize) {
    for entry in &model.weight_map().entries()[..count] {
        exporter.stream(&entry.parameter, &entry.shape, &mut |rows| model.rows(entry, rows));
    }
}

fn options(model: &HfModel, files: &[&str]) -> ExportOptions {
    let companions = files.iter().map(|name| ((*name).to_owned(), b"{}".to_vec())).collect();
    ExportOptions { max_shard_bytes: 50_000, experts: model.experts(), companions, ..ExportOptions::default() }
}

fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap();
    let mut names: Vec<String> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn a_killed_export_leaves_what_was_there_and_no_other_model() {
    let model = HfModel::open(&golden("llama")).unwrap();
    let count = model.weight_map().entries().len();
    let new = |folder: &Path, files: &[&str]| {
        Exporter::new(folder, model.family(), model.config(), &options(&model, files)).unwrap()
    };
    for filled in [0, 1, count] {
        let folder = tempfile::tempdir().unwrap();
        let mut killed = new(folder.path(), &["tokenizer.json"]);
        fill(&mut killed, &model, filled);
        // As after SIGKILL: no cleanup runs.
        std::mem::forget(killed);
        assert!(names(folder.path()).iter().all(|name| name.starts_with(".tmp-")), "{:?}", names(folder.path()));
        assert!(HfModel::open(folder.path()).is_err());
    }
    let before = export_to_temporary(&model, &ExportOptions::default());
    let weights = raw_tensors(&before.path().join("model.safetensors"));
    let mut killed = new(before.path(), &[]);
    fill(&mut killed, &model, count);
    std::mem::forget(killed);
    assert!(HfModel::open(before.path()).is_ok());
    assert_eq!(raw_tensors(&before.path().join("model.safetensors")), weights);
    // The next export removes the killed one's files, and the files that it replaces.
    let mut whole = new(before.path(), &["tokenizer.json"]);
    fill(&mut whole, &model, count);
    whole.finish().unwrap();
    let found = names(before.path());
    assert!(!found.iter().any(|name| name.starts_with(".tmp-") || name == "model.safetensors"), "{found:?}");
    assert!(["tokenizer.json", "model.safetensors.index.json"].iter().all(|name| found.contains(&(*name).to_owned())));
    assert_eq!(HfModel::open(before.path()).unwrap().config(), model.config());
}

#[test]
fn an_export_that_cannot_end_leaves_no_model() {
    let model = HfModel::open(&golden("llama")).unwrap();
    let folder = export_to_temporary(&model, &ExportOptions::default());
    // No file can have the name of a folder.
    std::fs::create_dir(folder.path().join("vocab.json")).unwrap();
    let made = Exporter::new(folder.path(), model.family(), model.config(), &options(&model, &["vocab.json"]));
    let mut exporter = made.unwrap();
    fill(&mut exporter, &model, model.weight_map().entries().len());
    let error = exporter.finish().unwrap_err().to_string();
    assert!(error.contains("vocab.json"), "{error}");
    assert!(!folder.path().join("config.json").exists() && HfModel::open(folder.path()).is_err());
    assert!(!names(folder.path()).iter().any(|name| name.starts_with(".tmp-")));
    // The same export may replace such a folder, with any files left in it.
    for name in names(folder.path()).iter().filter(|name| name.contains("safetensors")) {
        std::fs::remove_file(folder.path().join(name)).unwrap();
    }
    assert!(is_exported(folder.path()));
    std::fs::remove_dir(folder.path().join("vocab.json")).unwrap();
    let mut whole =
        Exporter::new(folder.path(), model.family(), model.config(), &options(&model, &["vocab.json"])).unwrap();
    fill(&mut whole, &model, model.weight_map().entries().len());
    whole.finish().unwrap();
    assert!(HfModel::open(folder.path()).is_ok());
    assert!(!names(folder.path()).iter().any(|name| name.starts_with('.')), "{:?}", names(folder.path()));
}

#[test]
fn exports_are_recognized_at_any_size() {
    let folder = tempfile::tempdir().unwrap();
    let weights = folder.path().join("model.safetensors");
    let num_bytes = 100_000_000_u64;
    for (producer, is_own) in [(r#","producer":"bridge 0.0.1""#, true), ("", false)] {
        let tensor = format!(r#"{{"dtype":"U8","shape":[{num_bytes}],"data_offsets":[0,{num_bytes}]}}"#);
        let header = format!(r#"{{"__metadata__":{{"format":"pt"{producer}}},"weight":{tensor}}}"#);
        let length = header.len() as u64;
        std::fs::write(&weights, [&length.to_le_bytes()[..], header.as_bytes()].concat()).unwrap();
        // Sparse, beyond the size of the largest header.
        let file = std::fs::OpenOptions::new().write(true).open(&weights).unwrap();
        file.set_len(8 + length + num_bytes).unwrap();
        assert_eq!(is_exported(folder.path()), is_own, "{header}");
    }
}

#[test]
fn a_bridge_brings_a_folder_back_with_all_that_goes_along() {
    let source = tempfile::tempdir().unwrap();
    for name in ["config.json", "model.safetensors"] {
        std::fs::copy(golden("qwen2").join(name), source.path().join(name)).unwrap();
    }
    std::fs::write(source.path().join("generation_config.json"), "{\"top_k\": 7}").unwrap();
    let bridge = AutoBridge::from_hf(source.path()).unwrap();
    let chunk = bridge.build(&device()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    bridge.to_hf(folder.path(), &[chunk.as_ref()], &ExportOptions::default()).unwrap();
    let tensors = |folder: &Path| raw_tensors(&folder.join("model.safetensors"));
    assert_eq!(tensors(folder.path()), tensors(source.path()));
    assert_eq!(std::fs::read_to_string(folder.path().join("generation_config.json")).unwrap(), "{\"top_k\": 7}");
    assert_eq!(AutoBridge::from_hf(folder.path()).unwrap().config(), bridge.config());
    let snapshot = bridge.snapshot().unwrap();
    assert_eq!(snapshot.groups[0].tensors.len(), bridge.model().weight_map().entries().len());
    assert!(snapshot.run.files.contains_key("generation_config.json"));
}

#[test]
fn rows_that_cannot_be_read_are_the_error_and_nothing_is_left() {
    let model = HfModel::open(&golden("gpt2")).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().join("new");
    let mut exporter = Exporter::new(&place, model.family(), model.config(), &ExportOptions::default()).unwrap();
    let entry = &model.weight_map().entries()[0];
    exporter.stream(&entry.parameter, &entry.shape, &mut |_| Err(HfError::Rows("the disk is gone".into())));
    assert_eq!(exporter.finish().unwrap_err().to_string(), "the disk is gone");
    assert!(names(folder.path()).is_empty());
}
