//! Files out and in again, against the values and files of the `gguf` package of Python, and
//! damaged ones.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Value, json};

use super::blocks::BlockType;
use super::file::GgufFile;
use super::*;
use crate::families::{GGUF_FAMILIES, with_model_type};
use crate::huggingface::tests::{device, golden, settings_of};
use crate::huggingface::{HfError, HfModel};

/// A golden model as a GGUF file in `folder`.
fn exported(name: &str, dtype: GgufDtype, folder: &Path) -> std::path::PathBuf {
    let path = folder.join(format!("{name}.gguf"));
    export(&HfModel::open(&golden(name)).unwrap(), dtype, &path);
    path
}

/// Writes a model to a GGUF file.
fn export(model: &HfModel, dtype: GgufDtype, path: &Path) {
    let mut exporter = GgufExporter::new(path, model.family(), model.config(), dtype, &BTreeMap::new()).unwrap();
    for entry in model.weight_map().entries() {
        exporter.stream(&entry.parameter, &entry.shape, &mut |rows| model.rows(entry, rows));
    }
    exporter.finish().unwrap();
}

const MODELS: [&str; 13] = [
    "gpt2",
    "llama",
    "llama_tied",
    "qwen2",
    "qwen3",
    "gemma",
    "olmo2",
    "glm4",
    "exaone4",
    "seed_oss",
    "nemotron",
    "ernie4_5",
    "cohere",
];

/// Golden models with settings that llama.cpp cannot hold, and what is changed of them.
fn changed() -> [(&'static str, Value); 2] {
    [
        ("starcoder2", json!({ "sliding_window": null })),
        ("arcee", json!({ "rope_parameters": { "rope_type": "default", "rope_theta": 500.0 } })),
    ]
}

/// Checks that a file has the settings and weights of a model; sums may round.
fn assert_same(after: &HfModel, before: &HfModel) {
    let name = before.family().model_type();
    // The format has no dropout: reading uses the family's default.
    let mut expected = before.config().clone();
    expected.embedding_dropout = after.config().embedding_dropout;
    expected.hidden_dropout = after.config().hidden_dropout;
    expected.attention_dropout = after.config().attention_dropout;
    expected.init_method_std = after.config().init_method_std;
    expected.embedding_init_method_std = after.config().embedding_init_method_std;
    assert_eq!(*after.config(), expected, "{name}");
    // One is added to norms there, which rounds them.
    let is_rounded = before.config().norm.zero_centered_gamma;
    for entry in before.weight_map().entries() {
        let all = 0..entry.shape[0];
        let [found, expected] = [after, before].map(|model| model.rows(entry, all.clone()).unwrap());
        let most = if is_rounded && entry.parameter.contains("layernorm.weight") { 1e-6 } else { 0.0 };
        let is_close = found.iter().zip(&expected).all(|(found, expected)| (found - expected).abs() <= most);
        assert!(is_close && found.len() == expected.len(), "{name} {}", entry.parameter);
    }
}

#[test]
fn a_file_has_the_model_of_its_folder() {
    for name in MODELS {
        let folder = tempfile::tempdir().unwrap();
        let path = exported(name, GgufDtype::F32, folder.path());
        assert!(is_exported_gguf(&path));
        let [before, after] = [golden(name), path.clone()].map(|path| HfModel::open(&path).unwrap());
        assert_same(&after, &before);
        let report = crate::verify(&path, &golden(name).join("golden.safetensors"), &device()).unwrap();
        assert!(report.logits.unwrap().passed, "{name}");
    }
}

#[test]
fn settings_that_llama_cpp_cannot_hold_are_left_out_or_refused() {
    for (name, changes) in changed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.gguf");
        let model = HfModel::open(&golden(name)).unwrap();
        let refused =
            GgufExporter::new(&path, model.family(), model.config(), GgufDtype::F32, &BTreeMap::new()).is_err();
        assert!(refused, "{name}");
        let mut settings = settings_of(name);
        settings.extend(changes.as_object().unwrap().clone());
        std::fs::write(folder.path().join("config.json"), Value::Object(settings).to_string()).unwrap();
        std::fs::copy(golden(name).join("model.safetensors"), folder.path().join("model.safetensors")).unwrap();
        let model = HfModel::open(folder.path()).unwrap();
        export(&model, GgufDtype::F32, &path);
        assert_same(&HfModel::open(&path).unwrap(), &model);
    }
}

#[test]
fn numbers_that_were_of_32_bits_once_are_no_loss() {
    let folder = tempfile::tempdir().unwrap();
    let mut settings = Value::Object(settings_of("llama"));
    // The double of the float32 1e-5, and a standard deviation that float32 cannot represent: real
    // folders have both.
    settings["rms_norm_eps"] = 9.999_999_747_378_752e-6.into();
    settings["initializer_range"] = 0.041_666_666_666_666_664.into();
    std::fs::write(folder.path().join("config.json"), settings.to_string()).unwrap();
    std::fs::copy(golden("llama").join("model.safetensors"), folder.path().join("model.safetensors")).unwrap();
    let model = HfModel::open(folder.path()).unwrap();
    let path = folder.path().join("a.gguf");
    export(&model, GgufDtype::F32, &path);
    let found = HfModel::open(&path).unwrap().config().norm.epsilon;
    assert_eq!(found as f32, model.config().norm.epsilon as f32);
}

#[test]
fn smaller_types_round_a_little() {
    for (dtype, most) in [(GgufDtype::F16, 5e-3), (GgufDtype::Bf16, 5e-2), (GgufDtype::Q8_0, 5e-2)] {
        let folder = tempfile::tempdir().unwrap();
        let path = exported("llama", dtype, folder.path());
        let report = crate::verify(&path, &golden("llama").join("golden.safetensors"), &device()).unwrap();
        let difference = report.logits.unwrap().difference.unwrap();
        assert!(difference > 1e-6 && difference < most, "{dtype:?}: {difference}");
    }
}

#[test]
fn every_table_names_a_family_and_each_tensor_once() {
    for gguf in GGUF_FAMILIES {
        assert_eq!(with_model_type(gguf.family.model_type()), Some(gguf.family));
        for (here, there, how) in gguf.tensors.iter().copied().flatten() {
            let [here, there] = [here, there].map(|name| name.replace("{}", "17"));
            assert_eq!(gguf.hugging_face(&here), Some((there.clone(), *how)));
            assert_eq!(gguf.gguf(&there), Some((here, *how)));
        }
    }
}

#[test]
fn blocks_have_the_values_that_python_gives_them() {
    let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/gguf"));
    assert!(!is_exported_gguf(&folder.join("blocks.gguf")));
    let file = GgufFile::open(&folder.join("blocks.gguf")).unwrap();
    let mut seen = Vec::new();
    for (name, tensor) in file.tensors.iter().filter(|(name, _)| !name.ends_with(".values")) {
        let count = tensor.shape.iter().product();
        let [mut found, mut expected] = [vec![0.0; count], vec![0.0; count]];
        file.read(tensor, 0, &mut found);
        file.read(&file.tensors[&format!("{name}.values")], 0, &mut expected);
        assert_eq!(found, expected, "{name}");
        let mut part = vec![0.0; 100];
        file.read(tensor, 77, &mut part);
        assert_eq!(part, expected[77..177], "{name}");
        seen.push(tensor.kind.name());
    }
    seen.sort_unstable();
    assert_eq!(seen, ["BF16", "F16", "Q2_K", "Q3_K", "Q4_0", "Q4_1", "Q4_K", "Q5_0", "Q5_1", "Q5_K", "Q6_K", "Q8_0"]);
}

#[test]
fn damaged_files_are_errors() {
    let folder = tempfile::tempdir().unwrap();
    let path = exported("llama_tied", GgufDtype::Q8_0, folder.path());
    let whole = std::fs::read(&path).unwrap();
    let damaged = folder.path().join("damaged.gguf");
    let open = |bytes: &[u8]| {
        std::fs::write(&damaged, bytes).unwrap();
        HfModel::open(&damaged)
    };
    for length in (0..4096).step_by(61).chain([whole.len() / 2, whole.len() - 33]) {
        assert!(matches!(open(&whole[..length]).unwrap_err(), HfError::Gguf { .. }), "{length}");
    }
    for at in (4..2048).step_by(4) {
        let mut changed = whole.clone();
        changed[at..at + 4].fill(0xff);
        // A changed file may still be a valid model of this family.
        drop(open(&changed));
    }
    let mut huge = whole.clone();
    huge[8..16].fill(0x7f);
    assert!(open(&huge).unwrap_err().to_string().contains("number of tensors"));
    let mut other = whole.clone();
    let at = other.windows(5).position(|bytes| bytes == b"llama").unwrap();
    other[at..at + 5].copy_from_slice(b"lamma");
    let error = open(&other).unwrap_err().to_string();
    assert!(error.contains("\"lamma\"") && error.contains("gpt2, llama, qwen2, qwen3, gemma"), "{error}");
}

#[test]
fn types_are_numbered_once() {
    for number in 0..64 {
        if let Some(kind) = BlockType::from_number(number) {
            assert_eq!(kind.number(), number);
        }
    }
}
