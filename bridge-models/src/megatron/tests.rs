//! Checkpoints that megatron-core has written (`tests/fixtures/megatron/make.py`): the model of
//! each has the outputs that it had in megatron-core.

use std::path::{Path, PathBuf};

use bridge_core::checkpoint::{CheckpointStore, CheckpointWriter, SaveOptions, Verification};
use bridge_core::config::{Format, RawConfig};
use bridge_core::model::{BuildContext, Parallel, Stage};
use bridge_core::train::load_parameters;
use burn::tensor::{Device, FloatDType, Int, Tensor, TensorData};
use safetensors::SafeTensors;

use super::*;
use crate::decoder::{DecoderConfig, build_decoder};
use crate::registry;

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/megatron").join(name)
}

/// A copy that may be harmed.
fn copy(name: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for entry in std::fs::read_dir(fixture(name)).unwrap() {
        let path = entry.unwrap().path();
        std::fs::copy(&path, folder.path().join(path.file_name().unwrap())).unwrap();
    }
    folder
}

/// Logits of the model of a folder on token ids `[b, t]`.
fn logits(folder: &Path, ids: TensorData) -> Vec<f32> {
    let root = tempfile::tempdir().unwrap();
    let snapshot = snapshot(folder, Some(&folder.join("recipe.toml"))).unwrap();
    CheckpointWriter::open(root.path(), SaveOptions::default()).unwrap().save(&snapshot).unwrap();
    let checkpoint = CheckpointStore::open(root.path()).unwrap().open_iteration(0, Verification::Contents).unwrap();
    let text = checkpoint.run_config().unwrap();
    let raw = RawConfig::from_text(&text, Format::Toml, &[], &registry().kinds()).unwrap();
    let config = DecoderConfig::from_transformer(&raw.model.config, 96).unwrap();
    let device = Device::flex();
    let context = BuildContext {
        device: device.clone().autodiff(),
        seed: 1,
        params_dtype: FloatDType::F32,
        padded_vocab_size: 96,
        parallel: Parallel::single(),
        deferred: None,
        adapter: None,
    };
    let mut chunk = build_decoder(&config, &context, &Stage::whole(config.stacks())).unwrap();
    load_parameters(chunk.as_mut(), &checkpoint).unwrap();
    assert_eq!(checkpoint.names().count(), chunk.parameters().len());
    let model = chunk.inference();
    let logits_btv = model.logits(Tensor::<2, Int>::from_data(ids, &device), &mut model.new_state()).unwrap();
    logits_btv.into_data().try_into_vec().unwrap()
}

#[test]
fn models_compute_what_they_did_there() {
    for name in ["dense", "moe"] {
        let file = std::fs::read(fixture(name).join("reference.safetensors")).unwrap();
        let reference = SafeTensors::deserialize(&file).unwrap();
        let (ids, expected) = (reference.tensor("input_ids").unwrap(), reference.tensor("logits").unwrap());
        let numbers: Vec<i64> = ids.data().as_chunks().0.iter().map(|id| i64::from_le_bytes(*id)).collect();
        let expected: Vec<f32> = expected.data().as_chunks().0.iter().map(|value| f32::from_le_bytes(*value)).collect();
        let found = logits(&fixture(name), TensorData::new(numbers, ids.shape().to_vec()));
        assert_eq!(found.len(), expected.len());
        let largest = expected.iter().fold(0.0_f32, |largest, value| largest.max(value.abs()));
        let difference = found.iter().zip(&expected).fold(0.0_f32, |most, (a, b)| most.max((a - b).abs()));
        assert!(largest > 0.5 && difference < 1e-5 * largest, "{name}: {difference:e} of {largest}");
    }
}

#[test]
fn the_newest_of_a_run_is_found_and_the_model_must_be_known() {
    let run = tempfile::tempdir().unwrap();
    let newest = run.path().join("iter_0000012");
    std::fs::rename(copy("moe").keep(), &newest).unwrap();
    std::fs::write(run.path().join(TRACKER), "12").unwrap();
    assert_eq!(find(run.path()), Some(newest.clone()));
    assert_eq!(find(&newest), Some(newest.clone()));
    let first = fingerprint(run.path()).unwrap();
    let error = snapshot(run.path(), None).unwrap_err().to_string();
    assert!(error.contains("run_config.yaml") && error.contains("--recipe"), "{error}");
    // The recipe that Megatron Bridge saves in the folder.
    let recipe = "model:\n  _target_: megatron.bridge.models.gpt_provider.GPTModelProvider\n  num_layers: 2\n  hidden_size: 16\n  num_attention_heads: 4\n";
    std::fs::write(newest.join(RECIPE), recipe).unwrap();
    let snapshot = snapshot(run.path(), None).unwrap();
    assert!(snapshot.run.run_config.contains("num_layers = 2"), "{}", snapshot.run.run_config);
    assert_ne!(fingerprint(run.path()).unwrap(), first);
    assert_eq!(find(&run.path().join("iter_0000013")), None);
}

/// Reads all of a folder.
fn read(folder: &Path) -> Result<(), MegatronError> {
    let folder = Folder::open(folder)?;
    for (name, tensor) in folder.tensors() {
        for part in names::parts(name, &tensor.shape).unwrap_or_default() {
            folder.values(name, &part.places)?;
        }
    }
    Ok(())
}

#[test]
fn damage_is_an_error_that_names_the_file() {
    let folder = copy("moe");
    read(folder.path()).unwrap();
    let part = folder.path().join("__0_0.distcp");
    let whole = std::fs::read(&part).unwrap();
    std::fs::write(&part, &whole[..whole.len() / 2]).unwrap();
    let error = read(folder.path()).unwrap_err().to_string();
    assert!(error.contains("__0_0.distcp") && error.contains("behind the end"), "{error}");
    std::fs::remove_file(&part).unwrap();
    assert!(read(folder.path()).unwrap_err().to_string().contains("__0_0.distcp"));
    std::fs::write(&part, vec![0; whole.len()]).unwrap();
    let error = read(folder.path()).unwrap_err().to_string();
    assert!(error.contains("no ZIP archive"), "{error}");
    // Bytes flipped anywhere: an error or other values, and never a panic.
    for file in [METADATA, "__0_0.distcp"] {
        let path = folder.path().join(file);
        std::fs::write(&part, &whole).unwrap();
        let content = std::fs::read(&path).unwrap();
        for at in (0..content.len()).step_by(61) {
            let mut bytes = content.clone();
            bytes[at] ^= 1 << (at % 8);
            std::fs::write(&path, bytes).unwrap();
            let _ = read(folder.path());
        }
        std::fs::write(&path, &content).unwrap();
    }
    read(folder.path()).unwrap();
}
