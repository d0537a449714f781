//! Tests of import, export and verification on the golden models: tiny random ones made by Hugging
//! Face transformers.

mod absent;
mod atomic;
mod experts;
mod files;
mod generation;
mod golden;
mod predictions;
mod scores;
mod settings;
mod sharded;

use std::path::{Path, PathBuf};

use burn::tensor::Device;
use safetensors::SafeTensors;
use serde_json::{Map, Value};

use super::*;
use crate::decoder::DecoderConfig;
use crate::families::{FAMILIES, with_model_type};

/// The golden models of families that are known here. Every family has one.
pub fn golden_models() -> Vec<String> {
    let folder = golden("");
    let names = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.filter(|name| golden(name).join("config.json").exists()).collect();
    names.sort();
    names.retain(|name| with_model_type(settings_of(name)["model_type"].as_str().unwrap()).is_some());
    for family in FAMILIES {
        let is_of_family = |name: &String| settings_of(name)["model_type"] == family.model_type();
        assert!(names.iter().any(is_of_family), "{family:?} has no golden model");
    }
    names
}

pub fn golden(name: &str) -> PathBuf {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/golden")).join(name)
}

pub fn device() -> Device {
    Device::flex().autodiff()
}

pub fn family(model_type: &str) -> &'static Family {
    with_model_type(model_type).unwrap()
}

/// The settings of a golden model.
pub fn settings_of(name: &str) -> Map<String, Value> {
    json::parse_table(&std::fs::read_to_string(golden(name).join("config.json")).unwrap()).unwrap()
}

/// The decoder of these settings.
pub fn parse(settings: &Map<String, Value>) -> Result<DecoderConfig, HfError> {
    described::Architecture::new(&fields::Fields::new(settings)).map(|architecture| architecture.config)
}

/// A copy of a golden model whose tensors went through `change`, as (name, dtype, shape, bytes).
pub fn changed_copy(name: &str, change: impl Fn(&mut Vec<Raw>)) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::copy(golden(name).join("config.json"), folder.path().join("config.json")).unwrap();
    let mut tensors = raw_tensors(&golden(name).join("model.safetensors"));
    change(&mut tensors);
    write_raw(&folder.path().join("model.safetensors"), &tensors);
    folder
}

/// A tensor as a file has it.
#[derive(Clone, Debug, PartialEq)]
pub struct Raw {
    pub name: String,
    pub dtype: safetensors::Dtype,
    pub shape: Vec<usize>,
    pub bytes: Vec<u8>,
}

pub fn raw_tensors(path: &Path) -> Vec<Raw> {
    let bytes = std::fs::read(path).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let mut tensors: Vec<Raw> = file
        .iter()
        .map(|(name, view)| Raw {
            name: name.to_owned(),
            dtype: view.dtype(),
            shape: view.shape().to_vec(),
            bytes: view.data().to_vec(),
        })
        .collect();
    tensors.sort_by(|a, b| a.name.cmp(&b.name));
    tensors
}

pub fn write_raw(path: &Path, tensors: &[Raw]) {
    let views = tensors.iter().map(|raw| {
        (&raw.name, safetensors::tensor::TensorView::new(raw.dtype, raw.shape.clone(), &raw.bytes).unwrap())
    });
    safetensors::serialize_to_file(views, None, path).unwrap();
}
